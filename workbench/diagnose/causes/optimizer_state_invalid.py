"""An optimizer's second moment is negative."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause

_ROOTS = ("sqrt", "rsqrt", "_foreach_sqrt")


def _rule(case: Case) -> bool:
    if case.event is None or case.event.where != "optimizer" or not case.base.startswith(_ROOTS):
        return False
    value = case.tensor("self")
    return value is not None and bool((value < 0).any())


def _explain(case: Case) -> str:
    return "The optimizer takes the root of a negative second moment, which it can never compute."


CAUSE = Cause(
    label="optimizer_state_invalid",
    order=40,
    rule=_rule,
    explain=_explain,
    fix="Check the state after loading it (second moments ≥ 0); reload or rebuild the moments.",
    limits="It does not show what wrote the negative value.",
)
