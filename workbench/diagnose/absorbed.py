"""Infs that were absorbed into wrong finite numbers, apart from benign absorption.

Benign: an intended constant, a result whose exact value at infinity is finite (``exp(-inf)`` is 0,
a softmax of −Inf is 0), and whatever a mask, an index or a clamp dropped. Wrong: an overflow that a
division or a root turned into a finite number, or ``nan_to_num`` replaced, and something then used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from workbench.diagnose.ops import DROPS, SATURATING
from workbench.diagnose.recompute import limited, range_of, recompute
from workbench.diagnose.replaced import consumers, replaces, used
from workbench.diagnose.slicing import Slice, Start, slice_trace

if TYPE_CHECKING:
    from workbench.diagnose.slicing import Origin
    from workbench.replay.trace import Trace
    from workbench.replay.trace_events import Event, KeptEvent

MAX_CANDIDATES = 64
_NEGLIGIBLE = 6e-8
"""The smallest float16: its normal numbers end at 6e-5, where results still matter."""


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
        if event.stage == "logging" or not (_absorbs(event) or _replaced(trace, event)):
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


def to_keep(trace: Trace, found: list[Absorption]) -> set[int]:
    """The events whose real arguments ``confirmed`` looks at."""
    keep = {index for a in found for index in (a.birth, a.absorber)}
    for a in found:
        if replaces(trace.graph[a.absorber]):
            keep |= set(consumers(trace, a.absorber))
    return keep


def confirmed(
    trace: Trace,
    found: list[Absorption],
    kept: Mapping[int, KeptEvent],
    origins: list[Origin],
) -> list[Absorption]:
    """Keep what made a wrong number that was used, and is not an origin already.

    Args:
        trace: The trace.
        found: Candidates.
        kept: Real arguments of their births and absorbers.
        origins: The origins found.
    """
    taken = {origin.event for origin in origins}
    return [a for a in found if a.birth not in taken and _is_wrong(trace, a, kept)]


def _is_wrong(trace: Trace, a: Absorption, kept: Mapping[int, KeptEvent]) -> bool:
    if replaces(trace.graph[a.absorber]):
        return used(trace, a.absorber, kept)
    return _overflowed(kept, a.birth) and _made_wrong(kept, a.absorber)


def _replaced(trace: Trace, event: Event) -> bool:
    return replaces(event) and bool(consumers(trace, event.index))


def _overflowed(kept: Mapping[int, KeptEvent], index: int) -> bool:
    event = kept.get(index)
    return event is not None and range_of(event, index - event.event) == "overflow"


def _made_wrong(kept: Mapping[int, KeptEvent], index: int) -> bool:
    """Whether the absorber would give another number for the dtype's largest value.

    The true value is at least about that large; where the op gives the same for it as for Inf, up
    to the smallest normal number of the dtype (1 / (1 + exp(100)) is 0 in float32), nothing is
    wrong.
    """
    event = kept.get(index)
    if event is None:
        return False
    actual = recompute(event, index - event.event)
    bounded = recompute(limited(event), index - event.event)
    if actual is None or bounded is None or not event.outputs:
        return True
    allowed = min(torch.finfo(event.outputs[0].dtype).tiny, _NEGLIGIBLE)
    return bool(((actual - bounded).abs() > allowed).any())


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
