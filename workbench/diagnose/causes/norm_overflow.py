"""The norm of finite gradients overflows."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import in_wider_dtype, unscaled_before_clipping


def _rule(case: Case) -> bool:
    event = case.event
    return event is not None and event.stage == "clip" and case.range == "overflow"


def _explain(case: Case) -> str:
    return f"Every gradient is finite, but the sum of their squares leaves {case.dtype}."


CAUSE = Cause(
    label="norm_overflow",
    order=45,
    rule=_rule,
    explain=_explain,
    fix=(
        "Compute the norm in float64, or divide by the largest |g| first; set "
        "error_if_nonfinite=True."
    ),
    limits="It does not show why the gradients are this large.",
    counterfactuals=lambda case: [*unscaled_before_clipping(case), *in_wider_dtype(case)],
)
