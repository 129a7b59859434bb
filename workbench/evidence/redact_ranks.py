"""``ranks.json`` for a redacted bundle: who was bad where and how the model was spread, no values.

As in the rest of the copy, what is not named here stays behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from workbench.evidence.sample_values import SampleValues

_HEAD: Final = (
    "schema incident run_id step world decided rank level lender unheard parallel bad_shards"
).split()
_MEMBER: Final = ("rank", "role", "stage", "micro_step", "level", "bundle")
DECISION: Final = (
    "at stage micro_step rank action first tripped bad_before_reduction bad_after_reduction skips "
    "alert"
).split()


def redact_ranks(
    said: Mapping[str, Any], values: SampleValues, *, parameters: bool
) -> dict[str, Any]:
    """What the copy says of other ranks.

    Args:
        said: ``ranks.json`` of the original.
        values: What the batch holds.
        parameters: Whether the copy holds the values of parameters: only then their bit sums, too.
    """
    kept = {key: values.without_tree(said[key]) for key in _HEAD if key in said}
    rows = said.get("ranks")
    kept["ranks"] = [
        {key: values.without_tree(row.get(key)) for key in _MEMBER}
        for row in (rows if isinstance(rows, list) else ())
        if isinstance(row, Mapping)
    ]
    kept["decision"] = redact_decision(said.get("decision"), values)
    sums = said.get("sums")
    of_parameters = sums.get("parameters") if isinstance(sums, Mapping) else None
    whole = parameters and isinstance(of_parameters, Mapping)
    kept["sums"] = {
        "parameters": values.without_tree(of_parameters) if whole else {},
        "optimizer": {},  # its state is not in the copy
    }
    return kept


def redact_decision(decision: Any, values: SampleValues) -> dict[str, Any] | None:
    """What all ranks decided, without what the first one found."""
    if not isinstance(decision, Mapping):
        return None
    return {key: values.without_tree(decision[key]) for key in DECISION if key in decision}
