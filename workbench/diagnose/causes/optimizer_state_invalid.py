"""An optimizer's second moment is negative, or missing while the first is there."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import rewritten
from workbench.diagnose.rewrites import clamped_argument

_ROOTS = ("sqrt", "rsqrt", "_foreach_sqrt")
_LOST = 1 / 30
"""A denominator this much smaller than its numerator: with both moments from the same gradients the
quotient stays below (1 − β₁)/√(1 − β₂), about 3 for the usual betas."""


def _rule(case: Case) -> bool:
    if case.event is None or case.event.where != "optimizer":
        return False
    if case.origin.kind == "growth":
        return _second_moment_lost(case)
    value = case.tensor("self")
    negative = value is not None and bool((value < 0).any())
    return case.base.startswith(_ROOTS) and negative


def _second_moment_lost(case: Case) -> bool:
    """Whether the update divides a first moment by little more than eps."""
    above, below = case.tensor("tensor1"), case.tensor("tensor2")
    if above is None or below is None:
        return False
    return bool(((above != 0) & (below.abs() <= _LOST * above.abs())).any())


def _explain(case: Case) -> str:
    if case.origin.kind == "growth":
        ratio = case.facts.get("growth", 0.0)
        return (
            "The optimizer divides a first moment by a second moment that is missing (0), so the "
            f"update is {ratio:,.0f} times larger than the parameter it changes."
        )
    return "The optimizer takes the root of a negative second moment, which it can never compute."


CAUSE = Cause(
    label="optimizer_state_invalid",
    order=5,
    rule=_rule,
    explain=_explain,
    fix="Check the state after loading it (second moments ≥ 0); reload or rebuild the moments.",
    limits="It does not show what wrote the negative value.",
    counterfactuals=lambda case: rewritten(
        case, "a second moment of at least 0", clamped_argument(0.0, None)
    ),
)
