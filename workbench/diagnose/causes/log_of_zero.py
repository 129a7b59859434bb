"""The logarithm of an exact zero."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause

_LOGS = frozenset("log log2 log10 log_ _foreach_log".split())
_DETERMINANTS = frozenset("_linalg_slogdet linalg_slogdet".split())


def _rule(case: Case) -> bool:
    if case.range == "overflow":
        return False
    if case.base == "log1p":
        value = case.tensor("self")
        return value is not None and bool((value == -1).any())
    if case.base in _DETERMINANTS:
        return case.event is not None and any(write.counts[2] for write in case.event.writes)
    return case.base in _LOGS and case.has_zero("self")


def _explain(case: Case) -> str:
    makers = case.zero_makers()
    if makers:
        event = case.trace.graph[makers[0][0]]
        return (
            f"{event.op} rounded {makers[0][1]:,} values to 0 in {event.writes[0].dtype}, "
            "and log(0) is −Inf."
        )
    if case.base in _DETERMINANTS:
        return "The matrix is singular: the logarithm of its determinant, log(0), is −Inf."
    return "The argument of the logarithm is exactly 0, and log(0) is −Inf."


CAUSE = Cause(
    label="log_of_zero",
    order=52,
    rule=_rule,
    explain=_explain,
    fix="Use log_softmax or cross_entropy on the logits, or clamp the argument away from 0.",
    limits="It does not show that a clamp keeps the gradient useful.",
)
