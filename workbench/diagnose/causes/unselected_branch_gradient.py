"""A branch that where or a mask left out still sends a gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import Intervention, rewritten
from workbench.diagnose.rewrites import double_where, nonzero_arguments, safe_denominator
from workbench.diagnose.selections import left_out, levelled_off, saturated, selections


def _rule(case: Case) -> bool:
    if case.origin.kind == "saved_value":
        return levelled_off(case) is None and not saturated(case)
    parts = _bad_parts(case)
    bad = [positions for part in parts if (positions := _bad_with_zero(case, part)) is not None]
    return bool(bad) and _was_left_out(case, parts, bad[0])


def _bad_parts(case: Case) -> list[int]:
    """The births in the origin's autograd node, its own first.

    A node may also be bad in a part that reads no gradient: DivBackward divides once more what
    forward divided.
    """
    event, graph = case.event, case.trace.graph
    if event is None or not case.backward or event.user_code:
        return []
    node = (event.node, event.forward_event)
    births = [origin.event for origin in case.slice.origins if origin.event >= 0]
    alike = [at for at in births if (graph[at].node, graph[at].forward_event) == node]
    return list(dict.fromkeys([event.index, *alike]))


def _bad_with_zero(case: Case, index: int) -> Tensor | None:
    """Where a derivative came out bad, if the gradient that came in was 0 at all of that."""
    graph, kept, element = case.trace.graph, case.kept.get(index), case.element(index)
    if kept is None or element >= len(kept.outputs):
        return None
    event = graph[index]
    bad = ~torch.isfinite(kept.outputs[element])
    for read in event.reads:
        gradient = case.tensor(read.argument, index)
        from_another = any(
            graph[p].stage == event.stage
            and (graph[p].node, graph[p].forward_event) != (event.node, event.forward_event)
            for p in read.producers
        )
        if gradient is None or not from_another:
            continue
        try:
            zero = (gradient == 0).expand_as(bad)
        except RuntimeError:  # a reduction: no element of it belongs to one of the gradient
            continue
        if bool(bad.any()) and bool(zero[bad].all()):
            return bad
    return None


def _was_left_out(case: Case, parts: list[int], bad: Tensor) -> bool:
    """Whether selections made the gradient 0 there; it may be 0 by itself."""
    dropped = [
        positions
        for index in selections(case.trace, parts)
        if index in case.kept and (positions := left_out(case.kept[index])) is not None
    ]
    alike = [positions for positions in dropped if positions.shape == bad.shape]
    if alike:
        return bool(torch.stack(alike).any(0)[bad].all())
    return any(bool(positions.any()) for positions in dropped)


def _explain(case: Case) -> str:
    if case.origin.kind != "saved_value":
        return (
            "The gradient that a where, a mask, an index or a limit sends to what it left out is "
            "0, and the derivative there is infinite: 0 × Inf, or 0 / 0, is NaN."
        )
    return (
        "Forward dropped a non-finite value, but its derivative is multiplied by 0: 0 × Inf is "
        "NaN, and so is 0 × NaN."
    )


def _counterfactuals(case: Case) -> list[Intervention]:
    event = case.event
    forward = event.forward_event if event is not None else None
    if forward is not None and case.trace.graph[forward].base.startswith("div"):
        return rewritten(case, "a denominator of 1 where it is 0", safe_denominator())
    safe = rewritten(case, "a safe argument where the branch is left out", double_where())
    if case.origin.kind == "saved_value":
        return safe
    return [*safe, *rewritten(case, "arguments of 1e-7 where they are 0", nonzero_arguments())]


CAUSE = Cause(
    label="unselected_branch_gradient",
    order=36,
    rule=_rule,
    explain=_explain,
    fix="Make the input of the dropped branch safe first (double where), not only its output.",
    limits="It does not show that the selected branch is right.",
    counterfactuals=_counterfactuals,
)
