"""A mean over nothing."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.ignored_labels import is_nll, none_counts
from workbench.diagnose.interventions import rewritten
from workbench.diagnose.rewrites import counted_mean

_TEXTS = ("numel() == 0", "zero-size", "non-empty", "at least one element")
"""How torch's own checks say it."""


def _rule(case: Case) -> bool:
    if case.origin.kind == "exception":
        return case.raised_with(_TEXTS)
    if case.range != "domain" and case.kept:
        return False
    if case.base in ("mean", "nanmean", "median", "nanmedian"):
        value = case.argument("self")
        return value is not None and value.numel() == 0
    if case.base == "segment_reduce":
        return case.argument("reduce") == "mean" and _has_empty_segment(case)
    return is_nll(case.base) and none_counts(case)


def _has_empty_segment(case: Case) -> bool:
    lengths, offsets = case.argument("lengths"), case.argument("offsets")
    if lengths is None and offsets is not None:
        lengths = offsets.diff(dim=-1)
    return lengths is not None and bool((lengths == 0).any())


def _explain(case: Case) -> str:
    if case.origin.kind == "exception":
        return "A reduction was asked for over an empty selection, which has no result."
    if case.base.startswith("nll_loss"):
        return "No label counts (ignored, or of weight 0), so the mean divides 0 by 0."
    if "median" in case.base:
        return "The median is over an empty selection, which has none."
    if case.base == "segment_reduce":
        return "The mean is over a segment of length 0, which is 0 divided by 0."
    return "The mean is over an empty selection, which is 0 divided by 0."


CAUSE = Cause(
    label="empty_reduction",
    order=30,
    rule=_rule,
    explain=_explain,
    fix="Divide a sum by max(count, 1), or leave the micro-batch out.",
    limits="It does not show why nothing was selected in this batch.",
    counterfactuals=lambda case: rewritten(case, "a sum divided by max(count, 1)", counted_mean()),
)
