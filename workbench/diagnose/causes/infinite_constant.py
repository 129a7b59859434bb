"""An Inf that the code put there itself met nothing to be chosen instead, or was summed."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import rewritten
from workbench.diagnose.ops import PLACING
from workbench.diagnose.rewrites_values import bounded_infinities

_CHOOSING = frozenset("amin amax min max".split())


def _rule(case: Case) -> bool:
    event = case.event
    if event is None or case.origin.kind != "birth" or not event.bad_reads:
        return False
    return not any(read.counts[0] for read in event.bad_reads) and placed(case) is not None


def placed(case: Case) -> int | None:
    """The event by which the code put the first +Inf of the slice where it is, if it did."""
    graph = case.trace.graph
    behind = sorted(i for i in case.slice.visited if i <= case.origin.event)
    for index in behind:
        event = graph[index]
        if event.base in PLACING and any(w.counts[1] for w in event.writes if w.bad):
            return index
    return None


def _explain(case: Case) -> str:
    index = placed(case)
    maker = case.trace.graph[case.origin.event if index is None else index]
    line = f" at {maker.source}" if maker.source else ""
    put = f"The code itself put +Inf there ({maker.op}{line})"
    if case.base in _CHOOSING:
        return f"{put}, and {case.base} had nothing else to choose from."
    return f"{put}, and {case.base} takes it together with finite values."


CAUSE = Cause(
    label="infinite_constant",
    order=32,
    rule=_rule,
    explain=_explain,
    fix="Treat the case that is left with nothing but the Inf on its own, or leave it out.",
    limits="It does not show whether the Inf or what reads it is meant otherwise.",
    counterfactuals=lambda case: rewritten(
        case, "±1e4 for infinite elements", bounded_infinities(1e4)
    ),
)
