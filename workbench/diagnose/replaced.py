"""Infs that ``nan_to_num`` replaced by a large finite number which the loss then used.

A replaced number is benign where nothing depends on it: where it is multiplied by 0 (the limit of
p·log p), picked away or compared. Only an infinity counts; a NaN replaced by 0 is how an empty mean
or a missing value is meant to be handled, and so is one that was in the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from workbench.diagnose.ops import DROPS
from workbench.diagnose.recompute import recompute

if TYPE_CHECKING:
    from torch import Tensor

    from workbench.replay.trace import Trace
    from workbench.replay.trace_events import Event, KeptEvent

MAX_CONSUMERS = 8
_REPLACERS = frozenset(("nan_to_num", "nan_to_num_"))


def replaces(event: Event) -> bool:
    """Whether an event put finite numbers in the place of infinities."""
    return event.base in _REPLACERS and any(r.counts[1] or r.counts[2] for r in event.bad_reads)


def consumers(trace: Trace, index: int) -> list[int]:
    """The first ops that read what an event wrote and are part of what backward went through."""
    derived = {e.forward_event for e in trace.graph if e.node is not None}
    return [
        event.index
        for event in trace.graph[index + 1 :]
        if event.node is None
        and not event.view
        and event.index in derived
        and any(read.used and index in read.producers for read in event.reads)
    ][:MAX_CONSUMERS]


def used(trace: Trace, index: int, kept: Mapping[int, KeptEvent]) -> bool:
    """Whether some consumer gives another result when the replaced numbers are halved."""
    maker = kept.get(index)
    if maker is None or not maker.outputs or not maker.args:
        return False
    given = maker.args[0]
    if not isinstance(given, torch.Tensor):
        return False
    result = maker.outputs[0]
    places = torch.isinf(given)
    return any(
        _depends(trace.graph[i], kept.get(i), result, places) for i in consumers(trace, index)
    )


def _depends(event: Event, kept: KeptEvent | None, result: Tensor, places: Tensor) -> bool:
    if kept is None or event.base in DROPS:
        return False
    halved = torch.where(places, result / 2, result)
    changed = False

    def change(value: Any) -> Any:
        nonlocal changed
        same = isinstance(value, torch.Tensor) and value.shape == result.shape
        if same and value.dtype == result.dtype and torch.equal(value, result):
            changed = True
            return halved
        if isinstance(value, list | tuple):
            return type(value)(change(item) for item in value)
        return value

    other = replace(
        kept,
        args=tuple(change(value) for value in kept.args),
        kwargs={name: change(value) for name, value in kept.kwargs.items()},
    )
    element = event.index - kept.event
    before, after = recompute(kept, element), recompute(other, element)
    if not changed or before is None or after is None or before.shape != after.shape:
        return False
    return bool(((before - after).abs() > 1e-6 * before.abs().clamp_min(1e-6)).any())
