"""Two infinities of the same sign were subtracted."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.flow import converts_saved_minus_inf, gradient_events
from workbench.diagnose.interventions import Intervention, rewritten
from workbench.diagnose.rewrites import finite_second_operand
from workbench.diagnose.rewrites_values import bounded_infinities

_TERMS = frozenset("add sub rsub".split())
_SUMS = _TERMS | frozenset(
    "sum mean logsumexp cumsum addmm mm bmm baddbmm mv dot _softmax _log_softmax".split()
)


def _rule(case: Case) -> bool:
    return case.origin.kind == "conversion" and case.base in _SUMS


def _of_saved(case: Case) -> bool:
    event = case.event
    if event is None or case.base not in _TERMS or event.node is None:
        return False
    return converts_saved_minus_inf(event, gradient_events(case.trace.graph))


def _explain(case: Case) -> str:
    if _of_saved(case):
        return (
            "Forward gave −Inf for a row of nothing but −Inf, and the derivative subtracts the one "
            "from the other: Inf − Inf is NaN, though the loss is finite."
        )
    if "softmax" in case.base:
        return "A row holds +Inf; softmax subtracts the row's largest element: Inf − Inf is NaN."
    return "Infinities of opposite sign meet in one sum: Inf − Inf is NaN."


def _counterfactuals(case: Case) -> list[Intervention]:
    if case.base in _TERMS and not case.backward:
        return rewritten(
            case, "0 for infinite elements that are subtracted", finite_second_operand()
        )
    return rewritten(case, "±1e4 for infinite elements", bounded_infinities(1e4))


CAUSE = Cause(
    label="inf_minus_inf",
    order=34,
    rule=_rule,
    explain=_explain,
    fix="Guard the place where a whole row or tile is masked (use where(max == -inf, 0, max)).",
    limits="It does not show that the infinities themselves are unintended.",
    counterfactuals=_counterfactuals,
)
