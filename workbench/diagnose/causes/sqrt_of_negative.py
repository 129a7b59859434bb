"""The square root of a negative number."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import rewritten
from workbench.diagnose.rewrites import clamped_argument

_ROOTS = frozenset("sqrt rsqrt sqrt_ rsqrt_ _foreach_sqrt".split())


def _rule(case: Case) -> bool:
    value = case.tensor("self")
    return case.base in _ROOTS and value is not None and bool((value < 0).any())


def _explain(case: Case) -> str:
    return "The argument of the square root is negative, often by rounding only."


CAUSE = Cause(
    label="sqrt_of_negative",
    order=54,
    rule=_rule,
    explain=_explain,
    fix="Clamp the argument at 0 (or a small eps when it is differentiated).",
    limits="It does not show whether the sign is a rounding error or a wrong value.",
    counterfactuals=lambda case: rewritten(
        case, "an argument of at least 1e-7", clamped_argument(1e-7, None)
    ),
)
