"""Find where a step went bad without tracing all of it.

One early-stopping scan over block boundaries, then over the parts of the block that turned bad,
then an op trace of that part alone. A candidate counts only if it can be shown to reach what broke:
the step is run with the candidate's non-finite values set to zero. What cannot be settled so is
left to a full trace, and the result says it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.evidence import Bundle, open_bundle
from workbench.replay import Replay

if TYPE_CHECKING:
    from workbench.diagnose.probes import Probe

SCHEMA = "workbench.bisect/1"
Say = Callable[[str], None]


@dataclass
class Bisection:
    """Where a bisect found the step to go bad.

    Attributes:
        bundle: The bundle.
        direction: ``forward``, ``backward``, ``step`` (after backward) or ``none``.
        block: Path of the block, or None where the birth is outside of blocks.
        part: The part of it that was traced, in words.
        origin: The first origin, in the words of findings/1, or None when nothing is bad.
        probes: Every run of the step, in order.
        looked_at: How many ops statistics were taken of, and how many ran.
        used_full_trace: Whether a full trace had to decide.
        notes: What limits the answer.
    """

    bundle: Bundle
    direction: str = "none"
    block: str | None = None
    part: str = ""
    origin: dict[str, Any] | None = None
    probes: list[Probe] = field(default_factory=list)
    looked_at: tuple[int, int] = (0, 0)
    used_full_trace: bool = False
    notes: list[str] = field(default_factory=list)

    def to_data(self) -> dict[str, Any]:
        """As ``workbench.bisect/1``."""
        return {
            "schema": SCHEMA,
            "bundle": {"id": self.bundle.id, "digest": self.bundle.digest},
            "which": "where",
            "direction": self.direction,
            "block": self.block,
            "part": self.part,
            "origin": self.origin,
            "probes": [probe.to_data() for probe in self.probes],
            "probe_count": len(self.probes),
            "ops_looked_at": self.looked_at[0],
            "ops": self.looked_at[1],
            "used_full_trace": self.used_full_trace,
            "notes": self.notes,
        }


def bisect(
    bundle: Bundle | str | Path,
    step: Any = None,
    trust: str | None = None,
    *,
    halve: bool = False,
    progress: Say | None = None,
) -> Bisection:
    """Find the block, the part of it and the op where the bad value was born.

    Args:
        bundle: A bundle or its path.
        step: The training step to replay.
        trust: ``"import"`` or ``"source"``: what code named by the bundle may run.
        halve: Halve over prefixes of the forward instead of scanning: each probe looks at one
            boundary and ends there.
        progress: Called with a sentence as each probe begins.

    Raises:
        BundleError: The bundle is damaged.
        CannotRunError: The step cannot be replayed here.
    """
    opened = bundle if isinstance(bundle, Bundle) else open_bundle(bundle)
    replay = Replay(opened, step=step, trust=trust)
    replay.source.require(replay.source.first_bad_stage or "input")
    from workbench.diagnose.bisect_search import Search

    return Search(opened, replay, progress or (lambda sentence: None), halve).run()
