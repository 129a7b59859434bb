"""A derivative that does not exist at this point."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import Intervention, rewritten
from workbench.diagnose.rewrites import distinct_eigenvalues, double_where, nonzero_arguments
from workbench.diagnose.roots import stable_roots


def _rule(case: Case) -> bool:
    derivative = case.backward and case.event is not None and not case.event.user_code
    return derivative and case.range == "domain"


def _explain(case: Case) -> str:
    event = case.event
    node = event.node if event is not None else ""
    return f"{node} divides by zero: the forward value sits where its derivative is infinite."


def _counterfactuals(case: Case) -> list[Intervention]:
    event = case.event
    forward = event.forward_event if event is not None else None
    if forward is not None and "linalg" in case.trace.graph[forward].base:
        return rewritten(case, "a small growing diagonal added", distinct_eigenvalues())
    return [
        *stable_roots(case),
        *rewritten(case, "a safe argument where the derivative is infinite", double_where()),
        *rewritten(case, "arguments of 1e-7 where they are 0", nonzero_arguments()),
    ]


CAUSE = Cause(
    label="singular_gradient",
    order=51,
    rule=_rule,
    explain=_explain,
    fix=(
        "Keep the forward value away from that point (an eps inside a root, a clamp, a norm with "
        "a zero subgradient, a small diagonal added to a matrix)."
    ),
    limits="It does not show that the forward value itself is wrong: it is finite.",
    counterfactuals=_counterfactuals,
)
