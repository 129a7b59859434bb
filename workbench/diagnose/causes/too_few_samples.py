"""An unbiased variance over fewer samples than it needs."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import rewritten
from workbench.diagnose.rewrites import biased_variance
from workbench.diagnose.rewrites_values import running_statistics

_TEXTS = ("more than 1 value per channel", "more than 1 spatial element")
"""How torch's own checks say it."""


def _rule(case: Case) -> bool:
    if case.origin.kind == "exception":
        return case.raised_with(_TEXTS)
    if not case.base.startswith(("var", "std")):
        return False
    value = case.argument("self")
    event = case.event
    if value is None or event is None:
        return False
    outputs = (
        max(1, event.writes[0].stats.finite + sum(event.writes[0].counts))
        if (event.writes and event.writes[0].stats)
        else 1
    )
    return int(value.numel()) <= outputs


def _explain(case: Case) -> str:
    if case.origin.kind == "exception":
        return "Batch statistics were asked for over a single sample, which has no variance."
    return "The unbiased variance is over one sample: it divides by n − 1 = 0."


CAUSE = Cause(
    label="too_few_samples",
    order=31,
    rule=_rule,
    explain=_explain,
    fix="Use the biased variance; where it is over samples, drop_last or refuse batches of one.",
    limits="It does not show that other batches have enough samples.",
    counterfactuals=lambda case: (
        rewritten(case, "the running statistics instead of the batch's", running_statistics())
        if case.origin.kind == "exception"
        else rewritten(case, "the biased variance", biased_variance())
    ),
)
