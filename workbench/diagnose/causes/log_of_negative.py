"""The logarithm of a negative number."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import Intervention, rewritten
from workbench.diagnose.rewrites import clamped_argument
from workbench.diagnose.rewrites_values import magnitude_of_determinant, positive_last


def _of_determinant(case: Case) -> bool:
    """torch.logdet writes NaN itself where the determinant is negative."""
    written = case.origin.kind == "nonfinite_scalar" and not case.backward
    return written and case.event is not None and case.event.function == "logdet"


def _rule(case: Case) -> bool:
    if _of_determinant(case):
        return True
    entropy = case.base == "special_entr"  # −x·log(x), and −Inf where x is negative
    value = case.tensor("self") if entropy else case.logarithm()
    if value is None or value.is_complex():  # a complex number is not negative
        return False
    return bool((value < 0).any())  # of a logit: p or 1 - p, whichever is smaller


def _explain(case: Case) -> str:
    if _of_determinant(case):
        return "The determinant is negative: it has no real logarithm, and logdet gives NaN."
    return "The argument of the logarithm is negative: there is no real logarithm."


def _counterfactuals(case: Case) -> list[Intervention]:
    if _of_determinant(case):
        return rewritten(case, "log|det| instead of log(det)", magnitude_of_determinant())
    if "xlog" in case.base:  # a factor comes before the argument
        return rewritten(case, "the magnitude of the argument", positive_last())
    return rewritten(case, "a positive argument", clamped_argument(1e-7, None))


CAUSE = Cause(
    label="log_of_negative",
    order=53,
    rule=_rule,
    explain=_explain,
    fix="Clamp the argument to the domain, and look at why it is negative.",
    limits="It does not show whether the sign is a rounding error or a wrong value.",
    counterfactuals=_counterfactuals,
)
