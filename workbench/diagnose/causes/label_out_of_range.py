"""An exception: an index is outside the table it points into."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause

_TYPES = ("IndexError", "RuntimeError")


def _rule(case: Case) -> bool:
    raised = case.trace.raised
    if raised is None:
        return False
    text = raised.message.lower()
    return ("out of bounds" in text or "out of range" in text) and raised.type in _TYPES


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
)
