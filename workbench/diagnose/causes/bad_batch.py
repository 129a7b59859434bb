"""A field of the batch was non-finite."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.repairs import repaired_batch


def _rule(case: Case) -> bool:
    return case.origin.kind == "poisoned_batch"


def _explain(case: Case) -> str:
    return f"{case.origin.leaf} holds non-finite values; nothing in the step made them."


CAUSE = Cause(
    label="bad_batch",
    order=11,
    rule=_rule,
    explain=_explain,
    fix="Validate the batch where it is collated, and drop or repair the samples named here.",
    limits="It does not show where in the data pipeline the value came from.",
    counterfactuals=repaired_batch,
)
