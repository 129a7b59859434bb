"""A label or target of the batch was non-finite."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.repairs import repaired_batch


def _rule(case: Case) -> bool:
    if case.origin.kind != "poisoned_batch" or case.event is None:
        return False
    return case.event.stage == "loss"


def _explain(case: Case) -> str:
    return f"{case.origin.leaf}, read first by the loss, holds non-finite values."


CAUSE = Cause(
    label="bad_label",
    order=10,
    rule=_rule,
    explain=_explain,
    fix="Check the labels where they are made, and drop or repair the samples named here.",
    limits="It does not show where in the data pipeline the value came from.",
    counterfactuals=repaired_batch,
)
