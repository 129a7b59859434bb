"""A buffer, or a tensor from outside of the model, was non-finite before the step began."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import Intervention
from workbench.diagnose.repairs import repaired_leaf


def _rule(case: Case) -> bool:
    return case.origin.kind in ("poisoned_buffer", "captured_tensor")


def _explain(case: Case) -> str:
    if case.origin.kind == "captured_tensor":
        return (
            "The step read a tensor that is no parameter, no buffer and not in the batch, and it "
            "was non-finite when the step began."
        )
    return f"Buffer {case.origin.leaf} was already non-finite when the step began."


def _counterfactuals(case: Case) -> list[Intervention]:
    if case.origin.kind == "captured_tensor":
        return []  # it is in no recorded state that could be changed
    return list(repaired_leaf(case))


CAUSE = Cause(
    label="poisoned_buffer",
    order=12,
    rule=_rule,
    explain=_explain,
    fix=(
        "Look at what made it so: an earlier step (then go back to a checkpoint from before it) or "
        "the code that builds it."
    ),
    limits=(
        "It does not show which earlier step made the value: that needs the steps before this one."
    ),
    counterfactuals=_counterfactuals,
)
