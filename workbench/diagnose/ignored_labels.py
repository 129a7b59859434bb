"""A classification loss over labels of which none counts."""

from __future__ import annotations

from workbench.diagnose.case import Case, ancestors


def is_nll(base: str) -> bool:
    """Whether an op takes labels and an index that it ignores."""
    return base in ("nll_loss_forward", "nll_loss2d_forward")


def none_counts(case: Case, index: int | None = None) -> bool:
    """Whether every label of a loss is ignored, or of weight 0.

    Args:
        case: An origin.
        index: Number of the kept event that is the loss; the origin by default.
    """
    target, ignored = case.argument("target", index), case.argument("ignore_index", index)
    if target is None:
        return False
    counted = target[target != ignored]
    weight = case.argument("weight", index)
    return counted.numel() == 0 or (weight is not None and bool((weight[counted] == 0).all()))


def upstream_none_counts(case: Case) -> bool:
    """Whether such a loss, summed, is what the origin divides."""
    graph = case.trace.graph
    found = [at for at in ancestors(case.trace, case.origin.event) if is_nll(graph[at].base)]
    return any(none_counts(case, at) for at in found if at in case.kept)
