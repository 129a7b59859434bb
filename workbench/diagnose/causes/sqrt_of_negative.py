"""The square root of a negative number."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import Intervention, rewritten
from workbench.diagnose.rewrites import clamped_argument
from workbench.diagnose.rewrites_values import positive_variance
from workbench.diagnose.rounding import by_rounding
from workbench.evidence.wording import number

_ROOTS = frozenset("sqrt rsqrt sqrt_ rsqrt_ _foreach_sqrt".split())


_NORMALISATIONS = frozenset("native_batch_norm _native_batch_norm_legit_no_training".split())


def _of_variance(case: Case) -> bool:
    """Whether a batch normalisation divides by the root of a negative running variance."""
    if case.base not in _NORMALISATIONS or case.argument("training"):
        return False
    variance, eps = case.tensor("running_var"), case.argument("eps")
    return variance is not None and bool((variance + float(eps or 0.0) < 0).any())


def _rule(case: Case) -> bool:
    if _of_variance(case):
        return True
    value = case.tensor("self")
    return case.base in _ROOTS and value is not None and bool((value < 0).any())


def _explain(case: Case) -> str:
    if _of_variance(case):
        return "A running variance is negative, by more than the eps that is added to it."
    value = case.tensor("self")
    assert value is not None  # noqa: S101 - the rule has looked at it
    least = float(value[value < 0].min())
    return f"The argument of the square root is {number(least)}{by_rounding(least, value)}."


def _counterfactuals(case: Case) -> list[Intervention]:
    if _of_variance(case):
        return rewritten(case, "0 for negative running variances", positive_variance())
    return rewritten(case, "an argument of at least 1e-7", clamped_argument(1e-7, None))


CAUSE = Cause(
    label="sqrt_of_negative",
    order=54,
    rule=_rule,
    explain=_explain,
    fix="Clamp the argument at 0 (or a small eps when it is differentiated).",
    limits="It does not show whether the sign is a rounding error or a wrong value.",
    counterfactuals=_counterfactuals,
)
