"""Two infinities of the same sign were subtracted."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import rewritten
from workbench.diagnose.rewrites import finite_second_operand

_SUMS = frozenset(
    "add add_ sub sub_ rsub sum mean logsumexp cumsum addmm mm bmm _softmax _log_softmax".split()
)


def _rule(case: Case) -> bool:
    return case.origin.kind == "conversion" and case.base in _SUMS


def _explain(case: Case) -> str:
    if "softmax" in case.base:
        return "A row holds +Inf; softmax subtracts the row's largest element: Inf − Inf is NaN."
    return "Infinities of opposite sign meet in one sum: Inf − Inf is NaN."


CAUSE = Cause(
    label="inf_minus_inf",
    order=34,
    rule=_rule,
    explain=_explain,
    fix="Guard the place where a whole row or tile is masked (use where(max == -inf, 0, max)).",
    limits="It does not show that the infinities themselves are unintended.",
    counterfactuals=lambda case: rewritten(
        case, "0 for infinite elements that are subtracted", finite_second_operand()
    ),
)
