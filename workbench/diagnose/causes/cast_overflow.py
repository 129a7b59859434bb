"""A cast to a narrower dtype overflowed."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import in_wider_dtype, rewritten
from workbench.diagnose.rewrites_values import without_cast


def _rule(case: Case) -> bool:
    return case.base in ("_to_copy", "copy", "to") and case.range != "domain" and not case.backward


def _explain(case: Case) -> str:
    return f"A finite value does not fit {case.dtype} when it is cast."


CAUSE = Cause(
    label="cast_overflow",
    order=62,
    rule=_rule,
    explain=_explain,
    fix="Keep this tensor in a dtype of a wider range, or scale it before the cast.",
    limits="It does not show why the value is this large.",
    counterfactuals=lambda case: [
        *rewritten(case, "float32 instead of the cast", without_cast()),
        *in_wider_dtype(case),
    ],
)
