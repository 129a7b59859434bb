"""A gradient overflowed under the loss scale."""

from __future__ import annotations

from workbench.diagnose.case import LOW_PRECISION, Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import Intervention, in_wider_dtype


def _rule(case: Case) -> bool:
    scale = case.facts.get("scale")
    scaled = isinstance(scale, float) and scale > 1.0
    return case.backward and scaled and case.range == "overflow" and case.dtype in LOW_PRECISION


def _explain(case: Case) -> str:
    return (
        f"Backward overflows {case.dtype} with the loss multiplied by {case.facts.get('scale'):g}."
    )


CAUSE = Cause(
    label="scaled_gradient_overflow",
    order=63,
    rule=_rule,
    explain=_explain,
    fix="Let the scaler lower the scale; if it keeps falling, keep this layer in float32.",
    limits="It does not show that the gradient overflows without the loss scale.",
    counterfactuals=lambda case: [
        Intervention("a loss scale of 1", conditions={"scale": 1.0}),
        *in_wider_dtype(case),
    ],
)
