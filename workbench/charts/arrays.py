"""Tables and ledgers as xarray: named dimensions, and counters beside every statistic.

A statistic over finite elements is NaN where there are none, and the counters say how many there
were: nothing is skipped without a number that says so. Reductions go through ``reduce_finite``;
xarray's own skip NaN in silence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import xarray as xr

from workbench.charts.finite import FloatArray
from workbench.charts.ledger_series import ledger_series
from workbench.charts.words import KINDS
from workbench.errors import UsageError

COUNTERS = (*KINDS, "finite", "zeros", "subnormals")
STATISTICS = ("min", "max", "absmax", "mean_square")

# Kind of tensor on screen -> how the layers table names its rows.
_TENSORS = {
    "activations": ("activation",),
    "gradients": ("parameter_gradient", "activation_gradient", "gradient"),
    "parameters": ("parameter",),
    "buffers": ("buffer",),
    "moments": ("optimizer_state", "moment"),
    "updates": ("update",),
}
TENSORS = tuple(_TENSORS)


class TableLike(Protocol):
    """A columnar table: equally long columns by name."""

    @property
    def columns(self) -> Mapping[str, Any]:
        """Column name -> array or list."""
        ...


def get_ready() -> None:
    """Have xarray look for other array libraries: its first Dataset imports each that is there."""
    xr.Dataset({"x": ("n", np.zeros(1))})


def tensor_kinds(layers: TableLike) -> tuple[str, ...]:
    """The kinds of tensor a layers table has rows of, in the order they are offered."""
    found = {str(value) for value in layers.columns.get("tensor", ())}
    return tuple(kind for kind, names in _TENSORS.items() if found & set(names))


def layer_arrays(layers: TableLike, tensor: str = "activations") -> xr.Dataset:
    """One kind of tensor of a layers table, in execution order.

    Args:
        layers: The table of a trace: one row per module call and tensor.
        tensor: ``activations``, ``gradients``, ``parameters``, ``buffers``, ``moments`` or
            ``updates``.

    Returns:
        Dimension ``layer``. Texts ``label, module, name, type, dtype, shape, source, stage``,
        counters (int64), statistics over finite elements (float64, NaN where there are none),
        ``absmin``, the smallest magnitude that is not zero (NaN where it was not traced) and
        ``rms``, the root of their mean square.

    Raises:
        UsageError: ``tensor`` is not a kind of tensor.
    """
    if tensor not in _TENSORS:
        raise UsageError(
            f"There is no kind of tensor {tensor!r} in a ranges chart; it knows "
            f"{', '.join(TENSORS)}. Choose one of these."
        )
    return _dataset(layers.columns, rows_of(layers, tensor))


def rows_of(layers: TableLike, tensor: str) -> npt.NDArray[np.intp]:
    """The rows of a layers table that hold one kind of tensor, in execution order."""
    columns = layers.columns
    kinds = np.asarray([str(value) for value in columns.get("tensor", ())], dtype=object)
    chosen = np.flatnonzero(np.isin(kinds, _TENSORS[tensor]))
    order = np.asarray(columns.get("order", np.arange(len(kinds))))
    sorted_rows: npt.NDArray[np.intp] = chosen[np.argsort(order[chosen], kind="stable")]
    return sorted_rows


def _dataset(columns: Mapping[str, Any], rows: npt.NDArray[np.intp]) -> xr.Dataset:
    data: dict[str, Any] = {}
    for name in ("module", "name", "type", "dtype", "shape", "source", "stage", "op"):
        data[name] = ("layer", _texts(columns.get(name), rows))
    for name in COUNTERS:
        data[name] = ("layer", _integers(columns.get(name), rows))
    for name in (*STATISTICS, "absmin"):
        data[name] = ("layer", _floats(columns.get(name), rows))
    # No finite element, no range: a stored placeholder must not reach a chart as a number.
    empty = data["finite"][1] == 0
    for name in (*STATISTICS, "absmin"):
        data[name][1][empty] = math.nan
    data["rms"] = ("layer", np.sqrt(data["mean_square"][1]))
    labels = [
        _label(*parts)
        for parts in zip(data["module"][1], data["name"][1], data["type"][1], strict=True)
    ]
    data["label"] = ("layer", np.asarray(labels, dtype=object))
    data["members"] = ("layer", np.ones(len(rows), dtype=np.int64))
    data["worst"] = ("layer", np.asarray(labels, dtype=object))
    return xr.Dataset(data, coords={"layer": np.arange(len(rows))})


def _label(module: str, name: str, kind: str) -> str:
    """Name a row: the module, with the tensor's own name where a module has several."""
    place = module or (kind.lower() if kind else "model")
    if name in ("", "out", "output", module):
        return place
    if module and name.startswith(f"{module}."):
        return name
    # "out.0" alone would not say whose output it is
    return f"{place} {name}" if module or name.startswith("out.") else name


def _texts(values: Any, rows: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
    texts = [""] * len(rows) if values is None else [_text(values[int(row)]) for row in rows]
    return np.asarray(texts, dtype=object).reshape(len(rows))


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _integers(values: Any, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
    if values is None:
        return np.zeros(len(rows), dtype=np.int64)
    # A trace writes -1 where a tensor has no statistics at all.
    return np.maximum(np.asarray(values)[rows].astype(np.int64), 0)


def _floats(values: Any, rows: npt.NDArray[np.intp]) -> FloatArray:
    if values is None:
        return np.full(len(rows), math.nan)
    picked = [values[int(row)] for row in rows]
    return np.asarray([math.nan if v is None else float(v) for v in picked], dtype=np.float64)


def ledger_arrays(records: Sequence[Mapping[str, Any]], rank: int | None = None) -> xr.Dataset:
    """A ledger's series as a dataset over the dimension ``record``: see ``ledger_series``."""
    data = ledger_series(records, rank)
    size = len(data["step"])
    series = {name: ("record", values) for name, values in data.items()}
    return xr.Dataset(series, coords={"record": np.arange(size)})


def trace_tree(layers: TableLike | None, records: Sequence[Mapping[str, Any]] = ()) -> xr.DataTree:
    """Everything a chart can show, as one tree: ``/ranges/<kind>`` and ``/ledger``."""
    nodes: dict[str, xr.Dataset] = {}
    if layers is not None:
        for kind in tensor_kinds(layers):
            nodes[f"/ranges/{kind}"] = layer_arrays(layers, kind)
    if records:
        nodes["/ledger"] = ledger_arrays(records)
    return xr.DataTree.from_dict(nodes)
