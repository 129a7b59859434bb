"""The ops of the loss as further rows of a layers table: a loss function is no module."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.charts.arrays import COUNTERS, STATISTICS, TableLike

# A loss with more ops than this shows those with a non-finite result and its last one.
MAX_OPS = 40


@dataclass(frozen=True)
class Columns:
    """Columns by name, and nothing else."""

    columns: dict[str, Any]


def with_loss(layers: TableLike, events: TableLike | None) -> TableLike:
    """Append the forward ops of the loss, in execution order, as activations.

    Args:
        layers: The layers table of a trace.
        events: The events table of the same trace; None gives the layers back.

    Returns:
        A table with the columns of ``layers``. Of several micro-steps the last one is taken, which
        is the one a step ends in.
    """
    if events is None:
        return layers
    chosen = _loss_events(events.columns)
    if not chosen:
        return layers
    before, found = layers.columns, events.columns
    size = len(before["module"])
    first = int(np.max(np.asarray(before["order"]))) + 1 if size else 0
    added: dict[str, list[Any]] = {
        "order": [first + index for index in range(len(chosen))],
        "module": ["loss"] * len(chosen),
        "type": [str(found["op"][i]) for i in chosen],
        "tensor": ["activation"] * len(chosen),
        "name": [_short(str(found["op"][i])) for i in chosen],
        "stage": ["loss"] * len(chosen),
        "dtype": [str(found["out_dtype"][i]) for i in chosen],
        "shape": [str(found["out_shape"][i]) for i in chosen],
        "source": [str(found["source"][i]) for i in chosen],
    }
    for name in ("event", "micro_step", *COUNTERS, *STATISTICS):
        added[name] = [found[name][i] for i in chosen]
    # what a trace takes of module borders only
    added["op"] = added["type"]
    added["absmin"] = [math.nan] * len(chosen)
    added["upstream"] = added["exponents"] = [[] for _ in chosen]
    added["first"] = [None] * len(chosen)
    return Columns({name: _joined(before[name], added[name]) for name in added if name in before})


def _loss_events(columns: Any) -> list[int]:
    needed = {"stage", "node", "out_dtype", "in_loss", "micro_step", *COUNTERS, *STATISTICS}
    if not needed <= set(columns):
        return []
    ops = [
        i
        for i, stage in enumerate(columns["stage"])
        if (str(stage) == "loss" or bool(columns["in_loss"][i]))
        and not columns["node"][i]
        and int(columns["finite"][i]) >= 0
    ]
    last = max((int(columns["micro_step"][i]) for i in ops), default=0)
    ops = [i for i in ops if int(columns["micro_step"][i]) == last]
    if len(ops) <= MAX_OPS:
        return ops
    kinds = ("nan", "pos_inf", "neg_inf")
    return [i for i in ops if i == ops[-1] or any(columns[kind][i] > 0 for kind in kinds)]


def _short(op: str) -> str:
    """``aten._log_softmax.default`` is read as ``log_softmax``."""
    parts = op.split(".")
    return (parts[1] if len(parts) > 1 else op).strip("_")


def _joined(before: Any, added: list[Any]) -> Any:
    if isinstance(before, np.ndarray):
        return np.concatenate([before, np.asarray(added, dtype=before.dtype)])
    return [*before, *added]
