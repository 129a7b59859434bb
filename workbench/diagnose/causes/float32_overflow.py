"""A result left the range of float32."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import in_wider_dtype, rewritten
from workbench.diagnose.rewrites import bounded_operands


def _rule(case: Case) -> bool:
    return case.range == "overflow" and case.dtype in ("float32", "float64")


def _explain(case: Case) -> str:
    return f"{case.event.op if case.event else 'The op'} gives more than {case.dtype} can hold."


CAUSE = Cause(
    label="float32_overflow",
    order=65,
    rule=_rule,
    explain=_explain,
    fix="Look at what grew: inputs, weights or the number of terms.",
    limits="It does not show whether inputs, weights or the number of terms should be smaller.",
    counterfactuals=lambda case: [
        *in_wider_dtype(case),
        *rewritten(case, "operands of at most 1e18", bounded_operands(1e18)),
    ],
)
