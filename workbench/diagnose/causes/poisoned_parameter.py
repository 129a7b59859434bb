"""Parameter was non-finite before the step began."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.repairs import repaired_leaf


def _rule(case: Case) -> bool:
    return case.origin.kind == "poisoned_parameter"


def _explain(case: Case) -> str:
    return f"Parameter {case.origin.leaf} was already non-finite when the step began."


CAUSE = Cause(
    label="poisoned_parameter",
    order=12,
    rule=_rule,
    explain=_explain,
    fix="Go back to a checkpoint from before it went bad, and look at the step that made it so.",
    limits=(
        "It does not show which earlier step made the value: that needs the steps before this one."
    ),
    counterfactuals=repaired_leaf,
)
