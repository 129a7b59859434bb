"""What a gradient came through that sends 0 to what forward left out: a where, a mask, a limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from workbench.diagnose.ops import EXPONENTIALS
from workbench.diagnose.recompute import range_of
from workbench.replay.trace_plan import plan_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from workbench.diagnose.case import Case
    from workbench.replay.trace import Trace
    from workbench.replay.trace_events import KeptEvent

_NODES: Final = (
    "WhereBackward",
    "MaskedFillBackward",
    "NanToNumBackward",
    "ClampBackward",
    "ClampMinBackward",
    "ClampMaxBackward",
    "MinimumBackward",
    "MaximumBackward",
    "MulBackward",
    "IndexBackward",
)
_PUTS: Final = frozenset({"index_put", "index_put_", "_index_put_impl_"})
_OPS: Final = frozenset({"where", "masked_fill", "masked_fill_", "mul"}) | _PUTS
_SATURATING: Final = (
    "ExpBackward",
    "Exp2Backward",
    "SigmoidBackward",
    "LogSigmoidBackward",
    "TanhBackward",
    "SoftmaxBackward",
    "ReciprocalBackward",
    "RsqrtBackward",
    "AtanBackward",
    "ErfBackward",
    "SoftplusBackward",
)
_MASK: Final = 1
"""Position of what a gradient is multiplied with."""
_HOPS: Final = 12
"""Events of backward between a derivative and a selection that are looked past."""


def selections(trace: Trace, parts: Iterable[int]) -> list[int]:
    """Find the selections upstream of some events of backward, nearest first.

    Args:
        trace: The traced step.
        parts: Numbers of events that ran inside an autograd node.

    Returns:
        Numbers of the events that put zeros into the gradient.
    """
    graph = trace.graph
    return [p for p in _upstream(trace, parts) if _selects(str(graph[p].node), graph[p].base)]


def _upstream(trace: Trace, parts: Iterable[int]) -> list[int]:
    """Events of backward that some others read from, directly or through others, nearest first."""
    graph = trace.graph
    level = list(parts)
    seen, found = set(level), []
    for _ in range(_HOPS):
        level = [
            p
            for at in level
            for read in graph[at].reads
            for p in read.producers
            if graph[p].node is not None and p not in seen
        ]
        seen.update(level)
        found += level
    return list(dict.fromkeys(found))


def _selects(node: str, base: str) -> bool:
    return node.startswith(_NODES) and base in _OPS


def left_out(kept: KeptEvent) -> Tensor | None:
    """Where a selection made a gradient 0 that was not; None where it read none."""
    if not kept.outputs or not _is_selection(kept):
        return None
    out = kept.outputs[0]
    if plan_of(kept.func).base in _PUTS:
        return _not_indexed(kept, out)
    for value in (*kept.args, *kept.kwargs.values()):
        if isinstance(value, torch.Tensor) and value.dtype == out.dtype and value.dim():
            return (out == 0) & (value != 0)
    return None


def _not_indexed(kept: KeptEvent, out: Tensor) -> Tensor:
    """What an index left out of forward: backward puts the gradient of the rest among zeros."""
    indices = kept.args[1] if len(kept.args) > 1 else kept.kwargs["indices"]
    left = torch.ones(out.shape, dtype=torch.bool, device=out.device)
    torch.ops.aten.index_put_(left, list(indices), torch.tensor(False, device=out.device))
    return left


def _is_selection(kept: KeptEvent) -> bool:
    """Whether a product is with a mask; every other op asked about is a selection."""
    if plan_of(kept.func).base != "mul":
        return True
    mask = kept.args[_MASK] if len(kept.args) > _MASK else None
    if not isinstance(mask, torch.Tensor):
        return False
    return bool(((mask == 0) | (mask == 1)).all()) and bool((mask == 0).any())


def levelled_off(case: Case) -> int | None:
    """Find the exponential whose Inf later ops of forward levelled off, without a selection.

    Args:
        case: An origin of kind ``saved_value``.

    Returns:
        The number of the forward event; None where a selection dropped the Inf, or it was none of
        an exponential that overflowed.
    """
    event = case.event
    forward = event.forward_event if event is not None else None
    if event is None or forward is None or case.origin.kind != "saved_value":
        return None
    kept = case.kept.get(forward)
    base = case.trace.graph[forward].base.removeprefix("_foreach_").rstrip("_")
    if base not in EXPONENTIALS or kept is None or range_of(kept) != "overflow":
        return None
    if not any(write.counts[0] for write in event.writes):
        return None
    return None if _dropped_by_selection(case, event.index) else forward


def saturated(case: Case) -> bool:
    """Whether what is flat at infinity made forward's Inf finite, and no selection did.

    That is a function between the saved value and the result, or the op that saved it: a recurrent
    layer's gates, for one.

    Args:
        case: An origin of kind ``saved_value``.
    """
    event, graph = case.event, case.trace.graph
    if event is None or case.origin.kind != "saved_value":
        return False
    own = None if event.forward_event is None else graph[event.forward_event]
    flat = own is not None and bool(own.bad_reads) and not own.bad
    if not flat:
        flat = any(_levels(case.trace, at) for at in _upstream(case.trace, [event.index]))
    return flat and not _dropped_by_selection(case, event.index)


def _levels(trace: Trace, at: int) -> bool:
    """Whether an event of backward belongs to a flat function that read the Inf in forward."""
    event = trace.graph[at]
    if event.forward_event is None or not str(event.node).startswith(_SATURATING):
        return False
    return bool(trace.graph[event.forward_event].bad_reads)


def _dropped_by_selection(case: Case, index: int) -> bool:
    """Whether a selection upstream of an event of backward made a gradient 0."""
    for at in selections(case.trace, [index]):
        dropped = left_out(case.kept[at]) if at in case.kept else None
        if dropped is not None and bool(dropped.any()):
            return True
    return False
