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
    """Whether the denominator is 1 minus a power βᵗ with t of 0, as a bias correction is.

    A square (``mean(g ** 2)``) is a power too, but nothing is subtracted from it, and its exponent
    is no step counter.
    """
    graph = case.trace.graph
    level = [(p, False) for r in case.event.reads for p in r.producers] if case.event else []
    for _ in range(_HOPS):
        following: list[tuple[int, bool]] = []
        for index, subtracted in level:
            event = graph[index]
            base = event.base.removeprefix("_foreach_").rstrip("_")
            if base == "pow" and subtracted and dict(event.scalars).get("exponent", 0) == 0:
                return True
            if base in _BETWEEN:
                less = subtracted or base in ("sub", "rsub", "add")
                following += [(p, less) for r in event.reads for p in r.producers]
        level = following
    return False


_HOPS = 5
_BETWEEN = frozenset("sub rsub add neg sqrt mul div reciprocal _to_copy".split())
"""What lies between βᵗ and the division: 1 − βᵗ, its root, its product with the rest."""


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
