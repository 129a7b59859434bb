"""A CTC target that cannot be aligned with its input."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import rewritten
from workbench.diagnose.rewrites_values import keyword


def _rule(case: Case) -> bool:
    return case.base in ("_ctc_loss", "_cudnn_ctc_loss")


def _explain(case: Case) -> str:
    return "No alignment of the target fits the input length, so its loss is infinite."


CAUSE = Cause(
    label="infeasible_target",
    order=37,
    rule=_rule,
    explain=_explain,
    fix="Drop such pairs, or pass zero_infinity=True.",
    limits="It does not show whether the target or the input length is wrong.",
    counterfactuals=lambda case: rewritten(case, "zero_infinity=True", keyword(zero_infinity=True)),
)
