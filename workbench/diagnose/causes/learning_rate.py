"""An update out of proportion to the parameters it changes."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause


def _rule(case: Case) -> bool:
    return case.origin.kind == "growth"


def _explain(case: Case) -> str:
    ratio = case.facts.get("growth", 0.0)
    return (
        f"No value is non-finite in this step, but its update is {ratio:,.0f} times larger than "
        "the parameter it changes; later steps grow from there until a range is left."
    )


CAUSE = Cause(
    label="learning_rate",
    order=6,
    rule=_rule,
    explain=_explain,
    fix="Lower the learning rate, warm it up, or clip the gradient norm.",
    limits=(
        "It does not show whether learning rate, gradient or loss is too large: their product is."
    ),
)
