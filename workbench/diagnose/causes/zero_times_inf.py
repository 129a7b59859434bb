"""Zero was multiplied by an infinity, or an infinity divided by another."""

from __future__ import annotations

import math

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import Intervention, rewritten
from workbench.diagnose.rewrites import absorbing_product
from workbench.diagnose.rewrites_values import bounded_infinities
from workbench.diagnose.selections import levelled_off, saturated
from workbench.evidence.wording import number

_PRODUCTS = frozenset("mul mm bmm addmm matmul div baddbmm addcmul addcdiv".split())
_CALLS = frozenset("mul multiply".split())
"""Functions of which the change gives 0 where one factor is 0."""


def _rule(case: Case) -> bool:
    if case.origin.kind == "saved_value":
        return saturated(case) and levelled_off(case) is None
    return case.origin.kind == "conversion" and case.base in _PRODUCTS


def _divides(case: Case) -> bool:
    return case.base in ("div", "addcdiv")


def _explain(case: Case) -> str:
    if case.origin.kind == "saved_value":
        return (
            "Forward's infinity was levelled off by a function that is flat there, whose "
            "derivative is 0; backward multiplies the two: 0 × Inf is NaN."
        )
    if _divides(case):
        return "An infinity is divided by an infinity: Inf / Inf is Inf × 0, which is NaN."
    numbers = [value for _, value in case.event.scalars] if case.event is not None else []
    given = [value for value in numbers if math.isinf(value)]
    if given:
        return f"Zero is multiplied by the number {number(given[0])}: 0 × Inf is NaN."
    return "Zero meets an infinity in a product: 0 × Inf is NaN."


def _counterfactuals(case: Case) -> list[Intervention]:
    function = case.event.function if case.event is not None else ""
    if function.strip("_").removeprefix("r").removeprefix("i") in _CALLS:
        return rewritten(case, "0 where one factor is 0", absorbing_product())
    return rewritten(case, "±1e4 for infinite elements", bounded_infinities(1e4))


CAUSE = Cause(
    label="zero_times_inf",
    order=35,
    rule=_rule,
    explain=_explain,
    fix="Select with where or masked_fill instead of multiplying by a mask or an inverse.",
    limits="It does not show that the infinity itself is unintended.",
    counterfactuals=_counterfactuals,
)
