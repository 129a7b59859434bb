"""The gamma function's logarithm, or a derivative of it, at a pole."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import rewritten
from workbench.diagnose.rewrites import clamped_argument

_GAMMA = frozenset("lgamma digamma polygamma mvlgamma".split())


def _rule(case: Case) -> bool:
    value = case.tensor("self")
    if case.base not in _GAMMA or value is None or case.range == "overflow":
        return False
    return bool(((value <= 0) & (value == value.round())).any())


def _explain(case: Case) -> str:
    return f"The argument of {case.base} is 0 or a negative integer, where it has a pole."


CAUSE = Cause(
    label="gamma_pole",
    order=54,
    rule=_rule,
    explain=_explain,
    fix="Keep the argument above 0: a softplus with a small constant added, or a clamp.",
    limits="It does not show why the argument (a concentration, a count) reached the pole.",
    counterfactuals=lambda case: rewritten(
        case, "an argument of at least 1e-3", clamped_argument(1e-3, None)
    ),
)
