"""A sweep as one tree of arrays: its cells, their runs, the state of every stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from workbench.evidence.table import Table, read_table
from workbench.step.stages import STAGES


def sweep_tree(directory: str | Path) -> xr.DataTree:
    """Open the tables that a sweep wrote.

    Args:
        directory: Where they are, ``<bundle>.findings/sweep`` unless it was named.

    Returns:
        ``/cells`` with dimension ``cell``; ``/runs`` with ``cell`` and ``repeat`` (NaN and empty
        texts where a cell has fewer runs); ``/stages`` with ``cell`` and ``stage``.

    Raises:
        BundleError: There are no such tables, or they are damaged.
    """
    found = {name: read_table(directory, name) for name in ("cells", "runs", "stages")}
    count = len(found["cells"])
    return xr.DataTree.from_dict(
        {
            "/cells": _cells(found["cells"]),
            "/runs": _runs(found["runs"], count),
            "/stages": _stages(found["stages"], count),
        }
    )


def _cells(table: Table) -> xr.Dataset:
    data = {
        name: ("cell", _column(column)) for name, column in table.columns.items() if name != "cell"
    }
    return xr.Dataset(data, coords={"cell": np.arange(len(table))})


def _column(column: Any) -> Any:
    if isinstance(column, np.ndarray):
        return column
    values = np.empty(len(column), dtype=object)
    values[:] = [value if isinstance(value, dict | list) else _text(value) for value in column]
    return values


def _text(value: Any) -> Any:
    return "" if value is None else value


def _runs(table: Table, cells: int) -> xr.Dataset:
    rows = table.rows()
    repeats = max((row["repeat"] for row in rows), default=-1) + 1
    data: dict[str, Any] = {}
    for name in ("loss", "seconds"):
        values = np.full((cells, repeats), np.nan)
        for row in rows:
            values[row["cell"], row["repeat"]] = row[name]
        data[name] = (("cell", "repeat"), values)
    for name in ("result", "stage", "tensor", "loss_bits"):
        texts = np.full((cells, repeats), "", dtype=object)
        for row in rows:
            texts[row["cell"], row["repeat"]] = _text(row[name])
        data[name] = (("cell", "repeat"), texts)
    return xr.Dataset(data, coords={"cell": np.arange(cells), "repeat": np.arange(repeats)})


def _stages(table: Table, cells: int) -> xr.Dataset:
    status = np.full((cells, len(STAGES)), "not_run", dtype=object)
    for row in table.rows():
        status[row["cell"], STAGES.index(row["stage"])] = row["status"]
    coords = {"cell": np.arange(cells), "stage": list(STAGES)}
    return xr.Dataset({"status": (("cell", "stage"), status)}, coords=coords)
