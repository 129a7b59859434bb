"""How far each layer's values were from the largest number of their dtype, before an overflow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.evidence.wording import clean, number
from workbench.numerics.limits import dtype_limits

if TYPE_CHECKING:
    from workbench.replay.trace import Trace

MOST_LAYERS = 8


def headroom(trace: Trace, before: int) -> list[dict[str, Any]]:
    """List the layers that came nearest to their dtype's limit, nearest first.

    Args:
        trace: The traced step.
        before: Event of the overflow: only what was computed before it counts.

    Returns:
        Rows of ``module, name, dtype, absmax, limit, share`` (of the limit) and ``sentence``.
    """
    best: dict[tuple[str, str, str], float] = {}
    for row in trace.rows:
        known = row.tensor == "activation" and 0 <= row.event < before
        if not known or row.stats.absmax is None:
            continue
        key = (row.module, row.name, row.dtype)
        best[key] = max(best.get(key, 0.0), float(row.stats.absmax))
    rows: list[dict[str, Any]] = []
    for (module, name, dtype), absmax in best.items():
        limit = float(dtype_limits(dtype).max)
        rows.append(
            {
                "module": module,
                "name": name,
                "dtype": dtype,
                "absmax": absmax,
                "limit": limit,
                "share": absmax / limit,
                "sentence": (
                    f"{clean(module, 80) or 'the model'}: largest {number(absmax)}, "
                    f"{number(100 * absmax / limit)} % of the largest {dtype}"
                ),
            }
        )
    rows.sort(key=lambda one: -one["share"])
    return rows[:MOST_LAYERS]
