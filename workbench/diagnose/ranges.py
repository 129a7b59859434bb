"""The sentence for an op that left the range of its dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.diagnose.recompute import result_fits

if TYPE_CHECKING:
    from workbench.diagnose.case import Case


def beyond(case: Case, limit: str) -> str:
    """Say whether an op's result is too large, or something it computes on its way.

    Args:
        case: An origin of which the same op is finite in float64.
        limit: What is exceeded, after "more than".
    """
    op = case.event.op if case.event is not None else "The op"
    kept = case.kept.get(case.origin.event)
    if kept is not None and result_fits(kept, case.element()):
        return (
            f"On its way to a result, {op} computes more than {limit}; in float64 the result is "
            "finite, and small enough."
        )
    return f"{op} gives more than {limit}."
