"""The logarithm of a negative number."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import rewritten
from workbench.diagnose.rewrites import clamped_argument

_LOGS = frozenset("log log2 log10 log1p log_".split())


def _rule(case: Case) -> bool:
    value = case.tensor("self")
    if value is None:
        return False
    limit = -1.0 if case.base == "log1p" else 0.0
    return case.base in _LOGS and bool((value < limit).any())


def _explain(case: Case) -> str:
    return "The argument of the logarithm is negative: there is no real logarithm."


CAUSE = Cause(
    label="log_of_negative",
    order=53,
    rule=_rule,
    explain=_explain,
    fix="Clamp the argument to the domain, and look at why it is negative.",
    limits="It does not show whether the sign is a rounding error or a wrong value.",
    counterfactuals=lambda case: rewritten(
        case, "a positive argument", clamped_argument(1e-7, None)
    ),
)
