"""A result left the range of float32."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import in_wider_dtype, rewritten
from workbench.diagnose.ranges import beyond
from workbench.diagnose.rewrites import bounded_operands
from workbench.evidence.wording import number


def _rule(case: Case) -> bool:
    return case.range == "overflow" and case.dtype in ("float32", "float64")


def _explain(case: Case) -> str:
    text = beyond(case, f"{case.dtype} can hold")
    division = case.division()
    if division is None:
        return text
    small = division[1].abs()
    small = small[small > 0]
    if not small.numel() or float(small.min()) >= 1:
        return text
    return f"{text[:-1]}: it divides by numbers as small as {number(float(small.min()))}."


CAUSE = Cause(
    label="float32_overflow",
    order=65,
    rule=_rule,
    explain=_explain,
    fix="Look at what grew (inputs, weights, the number of terms), or at what became that small.",
    limits="It does not show whether inputs, weights or the number of terms should be smaller.",
    counterfactuals=lambda case: [
        *in_wider_dtype(case),
        *rewritten(case, "operands of at most 1e18", bounded_operands(1e18)),
    ],
)
