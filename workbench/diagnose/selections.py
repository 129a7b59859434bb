"""What a gradient came through that sends 0 to what forward left out: a where or a filled mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from workbench.replay.trace import Trace
    from workbench.replay.trace_events import KeptEvent

_NODES: Final = ("WhereBackward", "MaskedFillBackward")
_OPS: Final = frozenset({"where", "masked_fill", "masked_fill_"})
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
        found += [p for p in level if _selects(str(graph[p].node), graph[p].base)]
    return list(dict.fromkeys(found))


def _selects(node: str, base: str) -> bool:
    return node.startswith(_NODES) and base in _OPS


def left_out(kept: KeptEvent) -> Tensor | None:
    """Where a selection made a gradient 0 that was not; None where it read none."""
    if not kept.outputs:
        return None
    out = kept.outputs[0]
    for value in (*kept.args, *kept.kwargs.values()):
        if isinstance(value, torch.Tensor) and value.dtype == out.dtype and value.dim():
            return (out == 0) & (value != 0)
    return None
