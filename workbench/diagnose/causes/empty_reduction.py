"""A mean over nothing."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import rewritten
from workbench.diagnose.rewrites import counted_mean


def _rule(case: Case) -> bool:
    if case.range != "domain" and case.kept:
        return False
    if case.base in ("mean", "nanmean"):
        value = case.argument("self")
        return value is not None and value.numel() == 0
    if case.base in ("nll_loss_forward", "nll_loss2d_forward"):
        target, ignored = case.argument("target"), case.argument("ignore_index")
        return target is not None and bool((target == ignored).all())
    return False


def _explain(case: Case) -> str:
    if case.base.startswith("nll_loss"):
        return "Every label is the ignore index, so the mean divides 0 by 0."
    return "The mean is over an empty selection, which is 0 divided by 0."


CAUSE = Cause(
    label="empty_reduction",
    order=30,
    rule=_rule,
    explain=_explain,
    fix="Divide a sum by max(count, 1), or leave the micro-batch out.",
    limits="It does not show why nothing was selected in this batch.",
    counterfactuals=lambda case: rewritten(case, "a sum divided by max(count, 1)", counted_mean()),
)
