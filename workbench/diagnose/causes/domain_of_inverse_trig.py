"""An inverse trigonometric or hyperbolic function outside of its domain."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import Intervention, rewritten
from workbench.diagnose.rewrites import clamped_argument
from workbench.diagnose.rounding import by_rounding
from workbench.evidence.wording import number

_INVERSE = frozenset("acos asin acosh atanh arccos arcsin erfinv acos_ asin_".split())


def _rule(case: Case) -> bool:
    return case.base in _INVERSE and case.range == "domain"


def _explain(case: Case) -> str:
    text = f"The argument of {case.base} lies outside of its domain"
    value = case.tensor("self")
    if value is None:
        return f"{text}."
    beyond = 1 - value if "acosh" in case.base else value.abs() - 1
    beyond = beyond[beyond > 0]
    if not beyond.numel():
        return f"{text}."
    far = float(beyond.max())
    return f"{text} by {number(far)}{by_rounding(far, value)}."


_INSIDE: dict[str, tuple[float | None, float | None, str]] = {
    "acosh": (1 + 1e-6, None, "of at least 1 + 1e-6"),
}


def _counterfactuals(case: Case) -> list[Intervention]:
    unit = (-1 + 1e-6, 1 - 1e-6, "inside of ±(1 − 1e-6)")
    low, high, words = _INSIDE.get(case.base, unit)
    return rewritten(case, f"an argument {words}", clamped_argument(low, high))


CAUSE = Cause(
    label="domain_of_inverse_trig",
    order=56,
    rule=_rule,
    explain=_explain,
    fix="Clamp the argument to the open interval (with a small margin when it is differentiated).",
    limits="It does not show whether the excess is a rounding error or a wrong value.",
    counterfactuals=_counterfactuals,
)
