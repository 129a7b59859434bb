"""Find which blocks must change for the step to be finite: leave low precision, or be removed.

Halving over prefixes of the blocks finds one block that is needed, then the next one given that
one, until the step is finite. Halving assumes that changing more blocks never brings the failure
back; every run is checked against that, and two more are made for it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from workbench.diagnose.bisect import SCHEMA, Say
from workbench.diagnose.boundaries import blocks
from workbench.diagnose.probes import Prober, modules_of, put_on
from workbench.errors import UsageError
from workbench.evidence import Bundle, open_bundle
from workbench.evidence.wording import counted
from workbench.replay import Replay
from workbench.replay.session import Session
from workbench.step.names import walk

if TYPE_CHECKING:
    from torch import nn

    from workbench.diagnose.probes import Probe

Which = Literal["precision", "remove"]
_WORDS: dict[str, str] = {"precision": "in float32", "remove": "replaced by identity"}


@dataclass
class Change:
    """Which blocks must change.

    Attributes:
        bundle: The bundle.
        which: ``precision`` or ``remove``.
        blocks: Blocks that could be changed, in order.
        unfit: Blocks that could not, with the reason.
        needed: Blocks whose change together makes the step finite; empty when no change does.
        monotone: Whether changing more blocks never brought the failure back, as far as it was
            run; None where there was nothing to compare.
        original_fails: Whether the original, run again at the end, still fails.
        probes: Every run of the step, in order.
        notes: What the answer does and does not show.
    """

    bundle: Bundle
    which: str
    blocks: list[str] = field(default_factory=list)
    unfit: dict[str, str] = field(default_factory=dict)
    needed: list[str] = field(default_factory=list)
    monotone: bool | None = None
    original_fails: bool | None = None
    probes: list[Probe] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_data(self) -> dict[str, Any]:
        """As ``workbench.bisect/1``."""
        return {
            "schema": SCHEMA,
            "bundle": {"id": self.bundle.id, "digest": self.bundle.digest},
            "which": self.which,
            "diagnostic": True,
            "blocks": self.blocks,
            "unfit": self.unfit,
            "needed": self.needed,
            "monotone": self.monotone,
            "original_fails": self.original_fails,
            "probes": [probe.to_data() for probe in self.probes],
            "probe_count": len(self.probes),
            "notes": self.notes,
        }


def bisect_change(
    bundle: Bundle | str | Path,
    which: Which,
    step: Any = None,
    trust: str | None = None,
    progress: Say | None = None,
) -> Change:
    """Find the blocks that must change for the step to be finite where it failed.

    Args:
        bundle: A bundle or its path.
        which: ``"precision"``: run in float32, outside autocast. ``"remove"``: replaced by
            identity, where input and output have one shape.
        step: The training step to replay.
        trust: ``"import"`` or ``"source"``: what code named by the bundle may run.
        progress: Called with a sentence as each run begins.

    Raises:
        UsageError: Another ``which``.
        BundleError: The bundle is damaged.
        CannotRunError: The step cannot be replayed here.
    """
    if which not in _WORDS:
        raise UsageError(
            f"A bisect over changes of the kind '{which}' is not known, so nothing was run. Use "
            "'precision' or 'remove', or leave it out to find where the bad value was born."
        )
    opened = bundle if isinstance(bundle, Bundle) else open_bundle(bundle)
    replay = Replay(opened, step=step, trust=trust)
    replay.source.require(replay.source.first_bad_stage or "input")
    return _Halving(opened, replay, which, progress or (lambda sentence: None)).run()


class _Halving:
    def __init__(self, bundle: Bundle, replay: Replay, which: Which, say: Say) -> None:
        self.replay, self.which, self.say = replay, which, say
        self.prober = Prober(replay)
        self.result = Change(bundle, which, probes=self.prober.probes)
        model = Session(replay.source, replay.nearest).runner.model
        known = dict(walk(model))
        self.result.blocks = [path for path, _ in blocks(model) if path in known]
        self._tested: dict[frozenset[str], bool] = {}

    def run(self) -> Change:
        result = self.result
        if not self._applies():
            return result
        result.original_fails = not self._finite(())
        if not result.original_fails:
            result.notes.append("The original is finite here, so there is nothing to search for.")
            return result
        if not self._finite(result.blocks):
            result.notes.append(
                f"With every block {_WORDS[self.which]} the step still fails: the failure is not "
                "one of these blocks' alone."
            )
            return result
        result.needed = self._needed()
        self._check_monotone()
        result.original_fails = self._runs((), "the original again")
        result.notes.append(
            f"Diagnostic: with {', '.join(result.needed)} {_WORDS[self.which]} the step is finite "
            "at the stage it failed in. That narrows where it depends on; it is no repair."
        )
        return result

    def _applies(self) -> bool:
        """Leave out blocks that cannot be changed; whether any is left."""
        if self.which == "remove":
            self.result.unfit = self._shapes()
            self.result.blocks = [b for b in self.result.blocks if b not in self.result.unfit]
        if self.which == "precision" and not self._low_precision():
            self.result.notes.append("Nothing in this step runs in low precision.")
            return False
        if not self.result.blocks:
            self.result.notes.append("No block of this model can be changed so.")
        return bool(self.result.blocks)

    def _low_precision(self) -> bool:
        conditions = self.replay.nearest
        low = (torch.float16, torch.bfloat16)
        model = Session(self.replay.source, conditions).runner.model
        return conditions.autocast != "off" or any(p.dtype in low for p in model.parameters())

    def _needed(self) -> list[str]:
        """The smallest prefix that suffices names a needed block; then the same, given it."""
        needed: list[str] = []
        candidates = list(self.result.blocks)
        while candidates and not (needed and self._finite(needed)):
            low, high = 0, len(candidates)
            while high - low > 1:
                middle = (low + high) // 2
                if self._finite([*candidates[:middle], *needed]):
                    high = middle
                else:
                    low = middle
            needed.insert(0, candidates[high - 1])
            candidates = candidates[: high - 1]
        return needed

    def _check_monotone(self) -> None:
        """Change more than is needed, in two ways, and compare all runs with each other."""
        every, needed = self.result.blocks, self.result.needed
        rest = [path for path in every if path not in needed]
        for half in (rest[: len(rest) // 2], rest[len(rest) // 2 :]):
            if half:
                self._finite([*needed, *half])
        finite = [changed for changed, ok in self._tested.items() if ok]
        contradictions = [
            (small, large)
            for small in finite
            for large, ok in self._tested.items()
            if small < large and not ok
        ]
        self.result.monotone = not contradictions
        if contradictions:
            large = ", ".join(sorted(contradictions[0][1]))
            self.result.notes.append(
                f"The effect is not monotone: with more blocks changed ({large}) the step fails "
                "again. Halving may then have missed another answer."
            )

    # -- runs ---------------------------------------------------------------------------------

    def _finite(self, changed: list[str] | tuple[str, ...]) -> bool:
        key = frozenset(changed)
        if key not in self._tested:
            count = (
                f"{len(key)} of {counted(len(self.result.blocks), 'block')} {_WORDS[self.which]}"
            )
            self._tested[key] = not self._runs(tuple(changed), count if key else "the original")
        return self._tested[key]

    def _runs(self, changed: tuple[str, ...], what: str) -> bool:
        """Run the step with some blocks changed; whether it fails."""
        self.say(f"Probe {len(self.prober.probes) + 1}: {what}")
        if self.which == "precision":
            conditions = self.replay.nearest
            both = tuple(dict.fromkeys((*conditions.float32_modules, *changed)))
            fails = self.prober.still_fails(_nothing, conditions.replace(float32_modules=both))
        else:
            fails = self.prober.still_fails(_identity(changed))
        shown = f"{what}: {', '.join(changed)}" if 0 < len(changed) <= 3 else what
        self.prober.note(shown, "still bad" if fails else "finite")
        return fails

    def _shapes(self) -> dict[str, str]:
        """Which blocks do not hand out one tensor of the shape and dtype they are given."""
        unfit = dict.fromkeys(self.result.blocks, "it did not run before the failure")

        def install(session: Session, stack: ExitStack) -> None:
            modules = dict(modules_of(session))
            for path in self.result.blocks:
                put_on(stack, modules[path].register_forward_hook(_compare(path, unfit)))

        self.say("Looking at the blocks' shapes")
        self.prober.run(install)
        self.prober.note("shapes at the blocks", f"{len(unfit)} cannot be replaced by identity")
        return unfit


def _nothing(session: Session, stack: ExitStack) -> None:
    del session, stack


def _compare(path: str, unfit: dict[str, str]) -> Callable[..., None]:
    refused: set[str] = set()

    def look(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        first = args[0] if args else None
        same = (
            isinstance(first, torch.Tensor)
            and isinstance(output, torch.Tensor)
            and (first.shape, first.dtype) == (output.shape, output.dtype)
        )
        if same and path not in refused:
            unfit.pop(path, None)
        elif not same:
            refused.add(path)
            unfit[path] = "its output has another shape or dtype than its input"

    return look


def _identity(changed: tuple[str, ...]) -> Callable[[Session, ExitStack], None]:
    def install(session: Session, stack: ExitStack) -> None:
        modules = dict(modules_of(session))
        for path in changed:
            module: Any = modules[path]
            # the model was built for this run alone: nothing has to be put back
            module.forward = _first_argument
        del stack

    return install


def _first_argument(*args: Any, **kwargs: Any) -> Any:
    del kwargs
    return args[0]
