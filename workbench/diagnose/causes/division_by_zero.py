"""A division by an exact zero."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.fused import rewritten_if_fused
from workbench.diagnose.interventions import rewritten
from workbench.diagnose.rewrites import safe_denominator
from workbench.diagnose.roots import stable_roots


def _rule(case: Case) -> bool:
    if case.origin.kind == "exception":
        return case.raised_with(("division by zero", "division or modulo by zero"))
    division = case.division()
    return division is not None and case.range != "overflow" and bool((division[1] == 0).any())


def _explain(case: Case) -> str:
    if case.origin.kind == "exception":
        return "Python divided a number by 0, which raises."
    return "The denominator is exactly 0."


CAUSE = Cause(
    label="division_by_zero",
    order=58,
    rule=_rule,
    explain=_explain,
    fix="Clamp the denominator from below, or treat the zero case on its own.",
    limits="It does not show why the denominator is 0 in this batch.",
    counterfactuals=lambda case: [
        *stable_roots(case),
        *rewritten(case, "a denominator of 1 where it is 0", safe_denominator()),
        *rewritten_if_fused(case),
    ],
)
