"""An exponential left the range of its dtype."""

from __future__ import annotations

from torch import Tensor

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import Intervention, in_wider_dtype, rewritten
from workbench.diagnose.ops import EXPONENTIALS
from workbench.diagnose.rewrites import clamped_argument
from workbench.diagnose.selections import levelled_off
from workbench.evidence.wording import number


def _rule(case: Case) -> bool:
    if case.origin.kind == "saved_value":
        return levelled_off(case) is not None
    return case.base in EXPONENTIALS and case.range == "overflow"


def _explain(case: Case) -> str:
    if case.origin.kind == "saved_value":
        return (
            "The exponential overflowed in forward. What followed levelled off, so that the loss "
            "is finite, but the derivative multiplies that Inf by 0, which is NaN."
        )
    value = case.tensor("self")
    largest = ""
    if value is not None and value.numel():
        largest = f" of {number(float(value.flatten()[_worst(case, value)]))}"
    name = case.base if _even(case) else "exponential"
    return f"The {name}{largest} is larger than {case.dtype} can hold."


def _even(case: Case) -> bool:
    """Whether the function grows in both directions."""
    return case.base in ("cosh", "sinh")


def _worst(case: Case, value: Tensor) -> int:
    return int((value.abs() if _even(case) else value).argmax())


def _counterfactuals(case: Case) -> list[Intervention]:
    if _even(case):
        bounded = rewritten(case, "an argument inside of ±5", clamped_argument(-5.0, 5.0))
    else:
        bounded = rewritten(case, "an argument of at most 5", clamped_argument(None, 5.0))
    return [*bounded, *in_wider_dtype(case)]


CAUSE = Cause(
    label="exp_overflow",
    order=36,
    rule=_rule,
    explain=_explain,
    fix="Clamp the argument before the exponential, or work with its logarithm.",
    limits="It does not show why the argument grew this large.",
    counterfactuals=_counterfactuals,
)
