"""A bias correction divides by 1 − β⁰ = 0."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import rewritten
from workbench.diagnose.rewrites import safe_denominator


def _rule(case: Case) -> bool:
    if case.event is None or case.event.where != "optimizer":
        return False
    division = case.division()
    if division is None or division[1].dim() != 0 or not bool(division[1] == 0):
        return False
    return _from_a_power(case)


def _from_a_power(case: Case) -> bool:
    """Whether the denominator is 1 minus a power, as a bias correction is."""
    graph = case.trace.graph
    makers = [p for read in case.event.reads for p in read.producers] if case.event else []
    earlier = [p for index in makers for read in graph[index].reads for p in read.producers]
    return any(graph[index].base.startswith("pow") for index in [*makers, *earlier])


def _explain(case: Case) -> str:
    return "The bias correction 1 − βᵗ is 0 because the step counter is 0."


CAUSE = Cause(
    label="bias_correction",
    order=41,
    rule=_rule,
    explain=_explain,
    fix="Save and restore the step counter, and start it at 1.",
    limits="It does not show why the counter was 0.",
    counterfactuals=lambda case: rewritten(
        case, "a denominator of 1 where it is 0", safe_denominator()
    ),
)
