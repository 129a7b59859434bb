"""An inverse trigonometric or hyperbolic function outside of its domain."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import rewritten
from workbench.diagnose.rewrites import clamped_argument

_INVERSE = frozenset("acos asin acosh atanh arccos arcsin erfinv logit acos_ asin_".split())


def _rule(case: Case) -> bool:
    return case.base in _INVERSE and case.range == "domain"


def _explain(case: Case) -> str:
    return f"The argument of {case.base} lies outside of its domain, often by rounding only."


CAUSE = Cause(
    label="domain_of_inverse_trig",
    order=56,
    rule=_rule,
    explain=_explain,
    fix="Clamp the argument to the open interval (with a small margin when it is differentiated).",
    limits="It does not show whether the excess is a rounding error or a wrong value.",
    counterfactuals=lambda case: rewritten(
        case, "an argument inside of ±(1 − 1e-6)", clamped_argument(-1 + 1e-6, 1 - 1e-6)
    ),
)
