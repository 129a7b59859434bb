"""Where the bundle of the rank that went bad first lies, as this rank sees it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from workbench.record.recorder import Recorder
    from workbench.record.session import Session
    from workbench.record.trip import Trip

WAIT_S: Final = 2.0
"""How long the other rank's files are waited for: in the first step they are just being made."""


@dataclass(frozen=True)
class First:
    """The rank that went bad first, or that raised.

    Attributes:
        rank: The rank.
        bundle: Its bundle, in this rank's folder.
        shared: Whether that rank writes to the same folder, so that ``bundle`` is there.
        raised: Whether it raised.
    """

    rank: int
    bundle: Path
    shared: bool
    raised: bool = False


def first_elsewhere(recorder: Recorder, session: Session, trip: Trip) -> First | None:
    """The rank whose bundle says where it began; None where that is this rank, or there is none.

    Args:
        recorder: The recorder.
        session: The recorded step.
        trip: What tripped.
    """
    if recorder.world <= 1 or trip.kind != "nonfinite":
        return None
    finding = trip.finding
    known = [int(rank) for rank in session.decision.get("first") or ()]
    raised = not known and finding is not None and (finding.told or {}).get("role") == "raised"
    elsewhere = None if finding is None or not raised else finding.elsewhere
    ranks = known or ([] if elsewhere is None or elsewhere < 0 else [elsewhere])
    if not ranks or recorder.rank in ranks:
        return None
    from workbench.record.incident import bundle_name

    rank = min(ranks)
    name = bundle_name(recorder.run_id, session.step_index, rank, recorder.world)
    bundle = recorder.directory / f"{name}.bundle"
    ledger = recorder.directory / f"{recorder.run_id}.rank{rank:05d}.ledger.jsonl"
    return First(rank, bundle, _comes(ledger, bundle), raised)


def _comes(*paths: Path) -> bool:
    """Whether one of the files is there, or comes within a moment."""
    end = time.monotonic() + WAIT_S
    while not any(path.exists() for path in paths):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
