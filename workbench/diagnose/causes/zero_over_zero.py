"""Zero divided by zero."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import rewritten
from workbench.diagnose.rewrites import safe_denominator


def _rule(case: Case) -> bool:
    division = case.division()
    if division is None or case.range == "overflow":
        return False
    above, below = division
    return bool(((above == 0) & (below == 0)).any())


def _explain(case: Case) -> str:
    return "Numerator and denominator are both exactly 0."


CAUSE = Cause(
    label="zero_over_zero",
    order=57,
    rule=_rule,
    explain=_explain,
    fix="Clamp the denominator from below, or leave the empty case out.",
    limits="It does not show why the denominator is 0 in this batch.",
    counterfactuals=lambda case: rewritten(
        case, "a denominator of 1 where it is 0", safe_denominator()
    ),
)
