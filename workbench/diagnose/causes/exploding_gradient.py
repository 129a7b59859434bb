"""A gradient out of proportion to those of the steps before, at an unchanged learning rate."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause

_EXPLODED = 100.0
"""Gradient over the median of the kept steps before, from which it is out of proportion."""


def _rule(case: Case) -> bool:
    return case.origin.kind == "growth" and case.facts.get("gradient_ratio", 0.0) >= _EXPLODED


def _explain(case: Case) -> str:
    ratio, gradient = case.facts["growth"], case.facts["gradient_ratio"]
    return (
        f"The gradient of this step is {gradient:,.0f} times that of the steps before, at the same "
        f"learning rate, and its update is {ratio:,.0f} times larger than the parameter it changes."
    )


CAUSE = Cause(
    label="exploding_gradient",
    order=5,
    rule=_rule,
    explain=_explain,
    fix="Look at this step's batch and loss, and clip the gradient norm.",
    limits="It does not show why the gradient was this large.",
)
