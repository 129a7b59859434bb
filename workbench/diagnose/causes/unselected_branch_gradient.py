"""A branch that where or a mask left out still sends a gradient."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import rewritten
from workbench.diagnose.rewrites import double_where


def _rule(case: Case) -> bool:
    return case.origin.kind == "saved_value"


def _explain(case: Case) -> str:
    return (
        "Forward dropped a non-finite value, but its derivative is multiplied by 0: 0 × Inf is "
        "NaN, and so is 0 × NaN."
    )


CAUSE = Cause(
    label="unselected_branch_gradient",
    order=36,
    rule=_rule,
    explain=_explain,
    fix="Make the input of the dropped branch safe first (double where), not only its output.",
    limits="It does not show that the selected branch is right.",
    counterfactuals=lambda case: rewritten(
        case, "a safe argument where the branch is left out", double_where()
    ),
)
