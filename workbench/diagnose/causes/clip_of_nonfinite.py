"""Clipping multiplied non-finite gradients and the update used them."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import Intervention, unscaled_before_clipping


def _rule(case: Case) -> bool:
    if not case.backward or case.origin.kind != "birth":
        return False
    stages = {case.trace.graph[index].stage for index in case.slice.visited}
    return "clip" in stages and "update" in stages


def _explain(case: Case) -> str:
    return (
        "A gradient overflowed in backward; clipping by an infinite norm turned it into "
        "NaN and the update used it."
    )


CAUSE = Cause(
    label="clip_of_nonfinite",
    order=46,
    rule=_rule,
    explain=_explain,
    fix=(
        "Unscale, check the gradients, clip with error_if_nonfinite=True, then step "
        "through the scaler."
    ),
    limits="It does not show that the gradient would be finite without the loss scale.",
    counterfactuals=lambda case: [
        Intervention("a loss scale of 1", conditions={"scale": 1.0}),
        *unscaled_before_clipping(case),
    ],
)
