"""An eps that rounds to zero left a denominator or logarithm unprotected."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import in_wider_dtype, rewritten, with_eps
from workbench.diagnose.rewrites import safe_denominator

_NEED_EPS = frozenset("rsqrt div div_ reciprocal log sqrt pow addcdiv_".split())


def _rule(case: Case) -> bool:
    return case.range != "overflow" and case.base in _NEED_EPS and bool(case.lost_scalars())


def _explain(case: Case) -> str:
    lost = case.lost_scalars()
    value = lost[0][1] if lost else 0.0
    return f"The eps of {value:g} is 0 in {case.dtype}, so it keeps nothing away from 0."


CAUSE = Cause(
    label="epsilon_underflow",
    order=50,
    rule=_rule,
    explain=_explain,
    fix="Compute this part in float32, or use an eps the dtype can hold.",
    limits="It does not show that the value would be far from 0 in float32.",
    counterfactuals=lambda case: [
        *with_eps(case),
        *rewritten(case, "a denominator of 1 where it is 0", safe_denominator()),
        *in_wider_dtype(case),
    ],
)
