"""The loss scale itself grew past its dtype."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import rewritten
from workbench.diagnose.rewrites import bounded_operands


def _rule(case: Case) -> bool:
    event = case.event
    return event is not None and event.where == "scaler" and event.stage == "after_update"


def _explain(case: Case) -> str:
    return "The loss scale grew until it became infinite; nothing caps it."


CAUSE = Cause(
    label="scale_overflow",
    order=44,
    rule=_rule,
    explain=_explain,
    fix="Cap the scale, and let it grow only while the new scale is finite.",
    limits="It does not show that the scale before was too large.",
    counterfactuals=lambda case: rewritten(
        case, "operands of at most 1e18", bounded_operands(1e18)
    ),
)
