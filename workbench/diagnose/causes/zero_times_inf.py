"""Zero was multiplied by an infinity."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import rewritten
from workbench.diagnose.rewrites import absorbing_product

_PRODUCTS = frozenset("mul mul_ mm bmm addmm matmul div div_ baddbmm _foreach_mul_".split())


def _rule(case: Case) -> bool:
    return case.origin.kind == "conversion" and case.base in _PRODUCTS


def _explain(case: Case) -> str:
    return "Zero meets an infinity in a product: 0 × Inf is NaN."


CAUSE = Cause(
    label="zero_times_inf",
    order=35,
    rule=_rule,
    explain=_explain,
    fix="Select with where or masked_fill instead of multiplying by a mask.",
    limits="It does not show that the infinity itself is unintended.",
    counterfactuals=lambda case: rewritten(case, "0 where one factor is 0", absorbing_product()),
)
