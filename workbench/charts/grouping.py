"""Thousands of layers grouped by module, each group taking its worst member's mark."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from workbench.charts.arrays import COUNTERS
from workbench.charts.words import KINDS

MAX_LAYERS = 400


def group_layers(layers: xr.Dataset, limit: int = MAX_LAYERS) -> xr.Dataset:
    """Group layers by module until at most ``limit`` are left.

    Groups are cut at the deepest module level that fits. Counters are summed, so that no
    non-finite element is lost; ranges are those of all members; ``worst`` names the member with
    the most non-finite elements (else the largest magnitude), which also gives dtype, shape and
    source.
    """
    if layers.sizes["layer"] <= limit:
        return layers
    members = membership(layers, limit)
    columns = {str(name): layers[name].values for name in layers.data_vars}
    merged = [_merge(key, np.asarray(rows), columns) for key, rows in members.items()]
    data = {
        name: ("layer", np.asarray([group[name] for group in merged], dtype=values.dtype))
        for name, values in columns.items()
    }
    return xr.Dataset(data, coords={"layer": np.arange(len(merged))})


def membership(layers: xr.Dataset, limit: int = MAX_LAYERS) -> dict[str, list[int]]:
    """The rows of each group, by the group's name; every row alone where there are few enough."""
    if layers.sizes["layer"] <= limit:
        return {str(row): [row] for row in range(int(layers.sizes["layer"]))}
    keys = _keys([str(m) or str(t) for m, t in zip(*_columns(layers), strict=True)], limit)
    members: dict[str, list[int]] = {}
    for row, key in enumerate(keys):
        members.setdefault(key, []).append(row)
    return members


def _columns(layers: xr.Dataset) -> tuple[list[str], list[str]]:
    return list(layers["module"].values), list(layers["label"].values)


def _keys(paths: list[str], limit: int) -> list[str]:
    """One group name per layer, with at most ``limit`` different ones."""
    depth = 1 + max(path.count(".") for path in paths)
    finer = list(paths)
    for level in range(depth, 0, -1):
        keys = [".".join(path.split(".")[:level]) for path in paths]
        found = len(set(keys))
        if found <= limit:
            # A level with next to no groups would hide where in the model things happen.
            return keys if found >= limit / 8 else _neighbours(finer, limit)
        finer = keys
    return _neighbours(finer, limit)


def _neighbours(keys: list[str], limit: int) -> list[str]:
    """Join groups that follow each other in execution order."""
    names = list(dict.fromkeys(keys))
    size = math.ceil(len(names) / limit)
    joined: dict[str, str] = {}
    for start in range(0, len(names), size):
        run = names[start : start + size]
        joined.update(dict.fromkeys(run, run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}"))
    return [joined[key] for key in keys]


def _merge(
    key: str, rows: npt.NDArray[np.intp], columns: Mapping[str, npt.NDArray[Any]]
) -> dict[str, Any]:
    nonfinite = np.sum([columns[kind][rows] for kind in KINDS], axis=0)
    absmax = np.nan_to_num(columns["absmax"][rows], nan=-1.0)
    worst = rows[np.lexsort((absmax, nonfinite))[-1]]
    group: dict[str, Any] = {name: values[worst] for name, values in columns.items()}
    group.update({name: int(columns[name][rows].sum()) for name in COUNTERS})
    # fmin and fmax pass over NaN, which here only means "no finite element", counted above.
    group["min"] = np.fmin.reduce(columns["min"][rows])
    group["max"] = np.fmax.reduce(columns["max"][rows])
    group["absmax"] = np.fmax.reduce(columns["absmax"][rows])
    group["absmin"] = np.fmin.reduce(columns["absmin"][rows])
    weights = columns["finite"][rows]
    squares = np.where(weights > 0, columns["mean_square"][rows], 0.0) * weights
    total = int(weights.sum())
    group["mean_square"] = float(squares.sum()) / total if total else math.nan
    group["rms"] = math.sqrt(group["mean_square"])
    group["members"] = len(rows)
    group["label"] = f"{key} ({len(rows)})" if len(rows) > 1 else key
    return group
