"""A trace as two columnar tables: its events, and the ranges at module borders."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.evidence import Table

if TYPE_CHECKING:
    from workbench.numerics.stats import TensorStats
    from workbench.replay.trace_events import Event, LayerRow, Write

_COUNTS = ("nan", "pos_inf", "neg_inf", "finite", "zeros", "subnormals")
_RANGES = ("min", "max", "absmax", "mean_square")


def events_table(events: Sequence[Event]) -> Table:
    """One row per event; ``nan`` marks statistics that do not exist, counts are -1 there.

    Returns:
        Columns as listed in ``docs/architecture.md`` under *Trace tables*.
    """
    writes = [event.writes[0] if event.writes else None for event in events]
    columns: dict[str, Any] = {
        "event": _ints(events, lambda e: e.index),
        "call": _ints(events, lambda e: e.call),
        "op": [e.op for e in events],
        "stage": [e.stage for e in events],
        "phase": [e.phase for e in events],
        "micro_step": _ints(events, lambda e: e.micro_step),
        "module": [e.module for e in events],
        "where": [e.where for e in events],
        "in_loss": np.array([e.in_loss for e in events], dtype=bool),
        "source": [e.source for e in events],
        "node": [e.node or "" for e in events],
        "node_event": _ints(events, lambda e: -1 if e.forward_event is None else e.forward_event),
        "recompute": np.array([e.recomputed for e in events], dtype=bool),
        "out_dtype": [w.dtype if w else "" for w in writes],
        "out_shape": [_shape(w) for w in writes],
    }
    columns |= _stat_columns([w.stats if w else None for w in writes])
    for position, name in enumerate(("in_nan", "in_pos_inf", "in_neg_inf")):
        columns[name] = np.array(
            [sum(read.counts[position] for read in e.reads if read.used) for e in events],
            dtype=np.int64,
        )
    columns["mutates"] = [",".join(w.slot for w in e.writes if w.slot != "out0") for e in events]
    return Table(columns, {"kind": "events"})


def layers_table(rows: Sequence[LayerRow]) -> Table:
    """One row per module call and tensor, in order of execution."""
    columns: dict[str, Any] = {
        "order": _ints(rows, lambda r: r.order),
        "module": [r.module for r in rows],
        "type": [r.type for r in rows],
        "tensor": [r.tensor for r in rows],
        "name": [r.name for r in rows],
        "stage": [r.stage for r in rows],
        "micro_step": _ints(rows, lambda r: r.micro_step),
        "dtype": [r.dtype for r in rows],
        "shape": [str(list(r.shape)) for r in rows],
        "event": _ints(rows, lambda r: r.event),
        "source": [r.source for r in rows],
    }
    columns |= _stat_columns([r.stats for r in rows])
    columns["absmin"] = np.array(
        [math.nan if r.absmin is None else r.absmin for r in rows], dtype=np.float64
    )
    columns["op"] = [r.op for r in rows]
    columns["upstream"] = [list(r.upstream) for r in rows]
    columns["exponents"] = [list(r.exponents) for r in rows]
    columns["first"] = [None if r.first is None else list(r.first) for r in rows]
    return Table(columns, {"kind": "layers"})


def _ints(items: Sequence[Any], get: Callable[[Any], int]) -> np.ndarray[Any, Any]:
    return np.array([get(item) for item in items], dtype=np.int64)


def _shape(write: Write | None) -> str:
    return str(list(write.shape)) if write is not None else ""


def _stat_columns(stats: Sequence[TensorStats | None]) -> dict[str, np.ndarray[Any, Any]]:
    found = {
        name: np.array([-1 if s is None else getattr(s, name) for s in stats], dtype=np.int64)
        for name in _COUNTS
    }
    for name in _RANGES:
        values = [math.nan if s is None else getattr(s, name) for s in stats]
        found[name] = np.array([math.nan if v is None else v for v in values], dtype=np.float64)
    return found
