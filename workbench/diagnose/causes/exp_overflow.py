"""An exponential left the range of its dtype."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import in_wider_dtype, rewritten
from workbench.diagnose.rewrites import clamped_argument

_EXPONENTIALS = frozenset("exp exp2 expm1 exp_ cosh sinh _foreach_exp".split())


def _rule(case: Case) -> bool:
    return case.base in _EXPONENTIALS and case.range == "overflow"


def _explain(case: Case) -> str:
    value = case.tensor("self")
    largest = f" of {float(value.max()):.4g}" if value is not None and value.numel() else ""
    return f"The exponential{largest} is larger than {case.dtype} can hold."


CAUSE = Cause(
    label="exp_overflow",
    order=61,
    rule=_rule,
    explain=_explain,
    fix="Clamp the argument before the exponential, or work with its logarithm.",
    limits="It does not show why the argument grew this large.",
    counterfactuals=lambda case: [
        *rewritten(case, "an argument of at most 5", clamped_argument(None, 5.0)),
        *in_wider_dtype(case),
    ],
)
