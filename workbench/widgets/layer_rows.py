"""The layer list: rows of a layers table, the most suspicious first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from workbench.charts.arrays import layer_arrays, rows_of
from workbench.charts.words import KINDS
from workbench.errors import UsageError
from workbench.numerics import dtype_limits

MAX_SHOWN = 200
NEAR = 0.5
"""From this share of its dtype's largest value on, a layer is marked as unusual."""


@dataclass(frozen=True)
class LayerRow:
    """One tensor of one layer.

    Attributes:
        index: Its place in execution order.
        label: What it is called on screen.
        counts: NaN, +Inf, −Inf and finite elements.
        share: Largest magnitude as a share of the dtype's largest value; None when not known.
        op: The op that wrote it.
        upstream: Modules whose results went into it.
        exponents: First binary exponent, then elements by exponent.
        first: Index of its first non-finite element.
    """

    index: int
    label: str
    module: str
    name: str
    dtype: str
    shape: str
    source: str
    counts: tuple[tuple[str, int], ...]
    low: float
    high: float
    absmax: float
    zeros: int
    share: float | None
    rms: float = math.nan
    subnormals: int = 0
    op: str = ""
    upstream: tuple[str, ...] = ()
    exponents: tuple[int, ...] = ()
    first: tuple[int, ...] | None = None

    @property
    def nonfinite(self) -> int:
        """Elements that are not finite."""
        return sum(many for kind, many in self.counts if kind in KINDS)

    @property
    def mark(self) -> str:
        """``✕`` non-finite, ``!`` near its dtype's limit, else a space."""
        if self.nonfinite:
            return "✕"
        return "!" if self.share is not None and self.share >= NEAR else " "


@lru_cache(maxsize=64)
def _largest(dtype: str) -> float | None:
    try:
        limits = dtype_limits(dtype)
    except UsageError:
        return None
    return float(limits.max) if limits.floating else None


class LayerRows:
    """The rows of the table on screen, kept while it stays the same: every key asks for them."""

    def __init__(self) -> None:
        self._of: tuple[Any, str] = (None, "")
        self._rows: list[LayerRow] = []

    def of(self, layers: Any, tensor: str) -> list[LayerRow]:
        """All rows of one kind of tensor, in execution order."""
        if self._of[0] is not layers or self._of[1] != tensor:
            self._of, self._rows = (layers, tensor), layer_rows(layers, tensor)
        return self._rows


def layer_rows(layers: Any, tensor: str) -> list[LayerRow]:
    """All rows of one kind of tensor, in execution order."""
    if layers is None:
        return []
    data = layer_arrays(layers, tensor)
    columns = {str(name): data[name].values for name in data.data_vars}
    more = {name: layers.columns.get(name) for name in ("upstream", "exponents", "first")}
    places = rows_of(layers, tensor)
    return [_row(columns, index, more, int(place)) for index, place in enumerate(places)]


def _row(columns: dict[str, Any], i: int, more: dict[str, Any], place: int) -> LayerRow:
    def listed(name: str) -> Any:
        found = more[name][place] if more[name] is not None else None
        return None if found is None else tuple(found)

    dtype = str(columns["dtype"][i])
    largest, absmax = _largest(dtype), float(columns["absmax"][i])
    share = absmax / largest if largest and absmax == absmax else None
    return LayerRow(
        index=i,
        label=str(columns["label"][i]),
        module=str(columns["module"][i]),
        name=str(columns["name"][i]),
        dtype=dtype,
        shape=str(columns["shape"][i]),
        source=str(columns["source"][i]),
        counts=tuple((kind, int(columns[kind][i])) for kind in (*KINDS, "finite")),
        low=float(columns["min"][i]),
        high=float(columns["max"][i]),
        absmax=absmax,
        zeros=int(columns["zeros"][i]),
        share=share,
        rms=float(columns["rms"][i]),
        subnormals=int(columns["subnormals"][i]),
        op=str(columns["op"][i]),
        upstream=listed("upstream") or (),
        exponents=listed("exponents") or (),
        first=listed("first"),
    )


def by_risk(rows: list[LayerRow], search: str = "") -> list[LayerRow]:
    """Rows whose name holds the search text: non-finite first, then by share of the limit."""
    wanted = search.strip().lower()
    kept = [row for row in rows if wanted in row.label.lower()] if wanted else list(rows)
    return sorted(kept, key=lambda row: (not row.nonfinite, -(row.share or 0.0), row.index))
