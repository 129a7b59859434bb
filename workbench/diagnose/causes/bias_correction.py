"""A bias correction divides by 1 − β⁰ = 0."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause

_DIVISIONS = ("div", "_foreach_div", "true_divide")


def _rule(case: Case) -> bool:
    if (
        case.event is None
        or case.event.where != "optimizer"
        or not case.base.startswith(_DIVISIONS)
    ):
        return False
    other = case.tensor("other")
    return other is not None and other.dim() == 0 and bool(other == 0)


def _explain(case: Case) -> str:
    return "The bias correction 1 − βᵗ is 0 because the step counter is 0."


CAUSE = Cause(
    label="bias_correction",
    order=41,
    rule=_rule,
    explain=_explain,
    fix="Save and restore the step counter, and start it at 1.",
    limits="It does not show why the counter was 0.",
)
