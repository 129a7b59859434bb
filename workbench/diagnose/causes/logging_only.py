"""Only the observation failed: the training state is finite."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import rewritten
from workbench.diagnose.rewrites_values import finite_result


def _rule(case: Case) -> bool:
    event = case.event
    stage = event.stage if event is not None else ""
    raised = case.trace.raised
    if raised is not None:
        stage = raised.stage
    return stage == "logging" and case.trace.loss_finite and _shown_finite(case)


def _shown_finite(case: Case) -> bool:
    """Whether the gates of gradients, parameters and state ran and found nothing."""
    before = [o for o in case.trace.outcomes if o.unit.stage != "logging"]
    ran = {outcome.unit.stage for outcome in before}
    clean = all(outcome.status == "clean" for outcome in before)
    state = not any(case.trace.contaminated.values())
    return {"backward", "update"} <= ran and clean and state


def _explain(case: Case) -> str:
    return "Loss, gradients, parameters and optimizer state are finite; a logged value is not."


CAUSE = Cause(
    label="logging_only",
    order=22,
    rule=_rule,
    explain=_explain,
    fix="Write non-finite metrics as text or null, and cap the metric.",
    limits="It is about this step: the next one was not run.",
    counterfactuals=lambda case: rewritten(
        case, "0 for the logged value that is not finite", finite_result()
    ),
)
