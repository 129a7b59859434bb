"""A fractional power of a negative number."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import rewritten
from workbench.diagnose.rewrites import clamped_argument


def _rule(case: Case) -> bool:
    value, exponent = case.tensor("self"), case.argument("exponent")
    if not case.base.startswith("pow") or value is None or case.range == "overflow":
        return False
    fractional = not isinstance(exponent, float | int) or exponent != int(exponent)
    return fractional and bool((value < 0).any())


def _explain(case: Case) -> str:
    return "A negative number is raised to a fractional power."


CAUSE = Cause(
    label="power_of_negative",
    order=55,
    rule=_rule,
    explain=_explain,
    fix="Clamp the base at 0, or raise its absolute value and restore the sign.",
    limits="It does not show why the base is negative.",
    counterfactuals=lambda case: rewritten(
        case, "a base of at least 1e-7", clamped_argument(1e-7, None)
    ),
)
