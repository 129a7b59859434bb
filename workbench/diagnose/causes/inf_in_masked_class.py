"""An intended −Inf was summed with finite elements."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.flow import mixes_finite
from workbench.diagnose.interventions import rewritten
from workbench.diagnose.rewrites_values import finite_mask, keyword


def _rule(case: Case) -> bool:
    event = case.event
    if event is None or case.origin.kind != "birth" or not event.bad_reads:
        return False
    only_infinite = not any(read.counts[0] for read in event.bad_reads)
    return only_infinite and event.in_loss and mixes_finite(event)


def _explain(case: Case) -> str:
    return "An intended infinity (a masked class) is summed with finite values by the loss."


CAUSE = Cause(
    label="inf_in_masked_class",
    order=33,
    rule=_rule,
    explain=_explain,
    fix="Keep masked classes out of the loss, or mask with a large finite value.",
    limits="It does not show which of mask and loss is meant to change.",
    counterfactuals=lambda case: [
        *rewritten(case, "no label smoothing", keyword(label_smoothing=0.0)),
        *rewritten(case, "a mask of -1e4 instead of -Inf", finite_mask(-1e4)),
    ],
)
