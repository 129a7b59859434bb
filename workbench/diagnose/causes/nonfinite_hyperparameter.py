"""A Python number given to the optimizer, clip or scaler was NaN or Inf."""

from __future__ import annotations

import math

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import rewritten
from workbench.diagnose.read_out import read_out_before
from workbench.diagnose.rewrites import finite_numbers


def _rule(case: Case) -> bool:
    event = case.event
    setting = event is not None and event.where in ("optimizer", "clip", "scaler")
    return setting and case.origin.kind == "nonfinite_scalar"


def _explain(case: Case) -> str:
    event = case.event
    names = [name for name, value in event.scalars if not math.isfinite(value)] if event else []
    return (
        f"The number passed as {', '.join(names) or 'an argument'} was not finite; the "
        f"tensors were.{read_out_before(case)}"
    )


CAUSE = Cause(
    label="nonfinite_hyperparameter",
    order=13,
    rule=_rule,
    explain=_explain,
    fix="Check what computes it: assert that every learning rate, decay and scale is finite.",
    limits="It does not show which schedule or setting computed the number.",
    counterfactuals=lambda case: rewritten(
        case, "0 for the number that is not finite", finite_numbers()
    ),
)
