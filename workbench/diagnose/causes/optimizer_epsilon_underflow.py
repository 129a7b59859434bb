"""The optimizer's eps is zero in the parameters' dtype."""

from __future__ import annotations

from workbench.diagnose.case import LOW_PRECISION, Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import rewritten, with_eps
from workbench.diagnose.rewrites import safe_denominator


def _rule(case: Case) -> bool:
    if case.event is None or case.event.where != "optimizer":
        return False
    if case.dtype not in LOW_PRECISION:
        return False
    denominator = case.tensor("tensor2")
    if denominator is None:
        denominator = case.tensor("other")
    zero = denominator is not None and bool((denominator == 0).any())
    return zero or bool(case.lost_scalars())


def _explain(case: Case) -> str:
    return f"The denominator is 0: eps and second moment both round to 0 in {case.dtype}."


CAUSE = Cause(
    label="optimizer_epsilon_underflow",
    order=42,
    rule=_rule,
    explain=_explain,
    fix=(
        "Keep parameters and state in float32 (autocast and a scaler), or use eps ≥ "
        "1e-4 in half precision."
    ),
    limits="It does not show that a larger eps trains as well.",
    counterfactuals=lambda case: [
        *with_eps(case),
        *rewritten(case, "a denominator of 1 where it is 0", safe_denominator()),
    ],
)
