"""Memory was written by something that runs no op in this thread."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import rewritten
from workbench.diagnose.rewrites_values import finite_operands


def _rule(case: Case) -> bool:
    return case.origin.kind == "unseen_write"


def _explain(case: Case) -> str:
    name = case.origin.argument or "an argument"
    who = (
        "Threads were started in this step, so one of them may have"
        if case.trace.threads
        else "A numpy view, a raw kernel or another thread can do that: something"
    )
    verb = "written it" if case.trace.threads else "wrote it"
    return (
        f"What {name} held was non-finite, and no op of the traced thread wrote that. {who} {verb}."
    )


CAUSE = Cause(
    label="written_outside",
    order=14,
    rule=_rule,
    explain=_explain,
    fix="Look at what writes to this memory without torch ops: numpy views, kernels, threads.",
    limits="It does not show what wrote the value, only that no traced op did.",
    counterfactuals=lambda case: rewritten(
        case, "0 for what is not finite where it is read", finite_operands()
    ),
)
