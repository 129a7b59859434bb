"""Gradients overflow when they are divided by a loss scale below 1."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import Intervention


def _rule(case: Case) -> bool:
    if case.event is None or case.event.stage != "unscale":
        return False
    scale = case.facts.get("scale")
    return isinstance(scale, float) and scale < 1.0


def _explain(case: Case) -> str:
    return (
        f"The loss scale is {case.facts.get('scale')}, so unscaling multiplies finite "
        "gradients out of range."
    )


CAUSE = Cause(
    label="scale_collapse",
    order=43,
    rule=_rule,
    explain=_explain,
    fix="Refuse a scale below 1: a model that needs it does not fit this precision.",
    limits="It does not show why the scale fell so far; that is in the steps before.",
    counterfactuals=lambda case: [Intervention("a loss scale of 1", conditions={"scale": 1.0})],
)
