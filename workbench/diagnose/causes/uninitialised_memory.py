"""Memory that nothing had written was read."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import rewritten
from workbench.diagnose.rewrites import zeroed_empty


def _rule(case: Case) -> bool:
    return case.origin.kind == "uninitialised"


def _explain(case: Case) -> str:
    return (
        "Rows of an empty tensor were read that nothing had written: they hold whatever was there."
    )


CAUSE = Cause(
    label="uninitialised_memory",
    order=14,
    rule=_rule,
    explain=_explain,
    fix="Use zeros instead of empty, or write every row.",
    limits="What the memory held differs from run to run; a replay may find it finite.",
    counterfactuals=lambda case: rewritten(case, "zeros instead of empty", zeroed_empty()),
)
