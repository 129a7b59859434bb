"""A result left the range of a 16-bit dtype."""

from __future__ import annotations

from workbench.diagnose.case import LOW_PRECISION, Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import in_wider_dtype
from workbench.diagnose.ranges import beyond


def _rule(case: Case) -> bool:
    return case.range == "overflow" and case.dtype in LOW_PRECISION


def _explain(case: Case) -> str:
    limit = "65,504" if case.dtype == "float16" else "3.39e38"
    return beyond(case, f"{limit}, the largest {case.dtype}")


CAUSE = Cause(
    label="low_precision_overflow",
    order=64,
    rule=_rule,
    explain=_explain,
    fix="Keep this layer in float32 or bfloat16, or bring its inputs back into range.",
    limits=(
        "A finite result in float32 shows that the range matters here, not that mixed "
        "precision is the cause."
    ),
    counterfactuals=in_wider_dtype,
)
