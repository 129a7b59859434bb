"""An exception: an index is outside the table it points into."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import rewritten
from workbench.diagnose.rewrites_values import valid_indices

_TEXTS = ("out of bounds", "out of range", "must be non-negative", "smaller than num_classes")
"""How torch's own checks say it."""


def _rule(case: Case) -> bool:
    return case.origin.kind == "exception" and case.raised_with(_TEXTS)


def _explain(case: Case) -> str:
    raised = case.trace.raised
    text = raised.message.splitlines()[0].rstrip(".") if raised is not None else ""
    return f"An index points outside of its table: {text}."


CAUSE = Cause(
    label="label_out_of_range",
    order=21,
    rule=_rule,
    explain=_explain,
    fix="Check labels and token ids against the number of classes or the size of the vocabulary.",
    limits="It does not show whether the index or the table is wrong.",
    counterfactuals=lambda case: rewritten(case, "indices inside of their table", valid_indices()),
)
