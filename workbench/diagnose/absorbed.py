"""Infs that were absorbed into wrong finite numbers, apart from benign absorption.

Benign: an intended constant, a result whose exact value at infinity is finite (``exp(-inf)`` is 0,
a softmax of −Inf is 0), and whatever a mask, an index or a clamp dropped. Wrong: an overflow that a
division or a root turned into a finite number that something then used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.diagnose.ops import DROPS, SATURATING
from workbench.diagnose.slicing import Slice, Start, slice_trace

if TYPE_CHECKING:
    from workbench.diagnose.slicing import Origin
    from workbench.replay.trace import Trace
    from workbench.replay.trace_events import Event

MAX_CANDIDATES = 64


@dataclass(frozen=True, slots=True)
class Absorption:
    """One Inf that ended in a wrong finite number.

    Attributes:
        birth: Event in which it was born.
        absorber: Event that made a finite number of it.
        elements: How many elements of the absorber's input were infinite.
    """

    birth: int
    absorber: int
    elements: int


def candidates(trace: Trace) -> list[Absorption]:
    """Find births whose Inf some op turned into a finite number.

    They are candidates only: whether a birth left its dtype's range is judged by recomputation.
    """
    found: dict[int, Absorption] = {}
    for event in trace.graph:
        if event.stage == "logging" or not _absorbs(event):
            continue
        reads = [r for r in event.bad_reads if not r.counts[0]]
        sliced = _origins_of(trace, event)
        for origin in sliced.origins:
            if origin.kind != "birth" or origin.event in found:
                continue
            elements = sum(r.counts[1] + r.counts[2] for r in reads)
            found[origin.event] = Absorption(origin.event, event.index, elements)
        if len(found) >= MAX_CANDIDATES:
            break
    return sorted(found.values(), key=lambda a: a.birth)


def confirmed(
    found: list[Absorption],
    overflowed: Callable[[int], bool],
    origins: list[Origin],
) -> list[Absorption]:
    """Keep what is a real overflow and is not reported as an origin already.

    Args:
        found: Candidates.
        overflowed: Whether an event's float64 result is finite where its own is not.
        origins: The origins found.
    """
    taken = {origin.event for origin in origins}
    return [a for a in found if a.birth not in taken and overflowed(a.birth)]


def _absorbs(event: Event) -> bool:
    """Whether an op read an Inf and gave a finite float, in a way that can be wrong."""
    if event.view or event.base in DROPS or event.base in SATURATING:
        return False
    if not event.writes or event.bad:
        return False
    if all(write.stats is None for write in event.writes):
        return False
    return any(read.used and (read.counts[1] or read.counts[2]) for read in event.reads)


def _origins_of(trace: Trace, event: Event) -> Slice:
    starts = [Start(r.producers, r.leaf, r.counts, r.argument) for r in event.bad_reads]
    return slice_trace(trace, starts, cut=False)
