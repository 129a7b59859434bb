"""Heat map: how the magnitudes of every layer are spread over binary exponents.

A view of the ranges: the same layers at the same places, the same strip of non-finite marks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from workbench.charts import ranges, style
from workbench.charts.arrays import TableLike, layer_arrays, rows_of
from workbench.charts.grouping import MAX_LAYERS, membership
from workbench.charts.ranges_hover import hover_texts
from workbench.charts.ranges_view import RangeView, range_view
from workbench.charts.words import number, plain, shorten
from workbench.errors import UsageError

CHART_ID = "wb-heat"
# Shares below one in a million look like it: what is there must be seen.
_FAINTEST = -6.0

Matrix = npt.NDArray[np.float64]


def figure(
    layers: TableLike,
    tensor: str = "activations",
    theme: style.Theme = "light",
    max_layers: int = MAX_LAYERS,
    height: int = 360,
) -> go.Figure:
    """Draw the share of elements by binary exponent, a column a layer.

    Args:
        layers: The layers table of a trace, with exponents.
        tensor: Kind of tensor, as ``arrays.layer_arrays`` knows them.
        theme: Palette of grid and texts.
        max_layers: Above this many, layers are grouped by module.
        height: Height in pixels.

    Raises:
        UsageError: The kind is unknown, or the trace has no exponents of it.
    """
    view = range_view(layers, tensor, max_layers)
    first, counts = exponent_counts(layers, tensor, max_layers)
    total = np.maximum(_elements(view), 1)
    with np.errstate(divide="ignore"):
        shares = np.log10(counts / total)
    shares[counts == 0] = math.nan
    heat = go.Heatmap(
        name="elements",
        z=shares,
        y0=first,
        dy=1,
        x0=0,
        dx=1,
        colorscale="Cividis",
        zmin=_FAINTEST,
        zmax=0.0,
        showscale=False,
        hoverongaps=False,
        text=_hover(view, first, counts, total),
        hoverinfo="text",
    )
    marks = ranges.marks_of(view, hover_texts(view), theme)
    return go.Figure(data=[heat, *marks], layout=_layout(view, first, len(counts), theme, height))


def exponent_counts(
    layers: TableLike, tensor: str, max_layers: int = MAX_LAYERS
) -> tuple[int, Matrix]:
    """Elements by exponent (rows, from the returned first one on) and layer or group (columns).

    Raises:
        UsageError: The trace has no exponents of this kind of tensor.
    """
    column = layers.columns.get("exponents")
    rows = rows_of(layers, tensor)
    found = [list(column[int(row)] or ()) for row in rows] if column is not None else []
    filled = [one for one in found if one]
    if not filled:
        raise UsageError(
            f"The trace holds no exponents of {tensor!r}, so there is no heat map to draw: it was "
            "made by an older version, or nothing is finite. Replay here to trace again."
        )
    first = min(one[0] for one in filled)
    last = max(one[0] + len(one) - 2 for one in filled)
    groups = membership(layer_arrays(layers, tensor), max_layers)
    counts = np.zeros((last - first + 1, len(groups)))
    for place, members in enumerate(groups.values()):
        for row in members:
            _add(counts[:, place], found[row], first)
    return first, counts


def _add(column: Matrix, exponents: Sequence[int], first: int) -> None:
    if exponents:
        start = exponents[0] - first
        column[start : start + len(exponents) - 1] += exponents[1:]


def _elements(view: RangeView) -> Matrix:
    names = ("nan", "pos_inf", "neg_inf", "finite")
    found: Matrix = np.sum([view.layers[name].values for name in names], axis=0).astype(float)
    return found


def _hover(view: RangeView, first: int, counts: Matrix, total: Matrix) -> list[list[str]]:
    labels = view.labels
    return [
        [
            f"{plain(shorten(labels[i], 80))}<br>|x| from 2^{exponent} to "
            f"2^{exponent + 1}: {number(int(n))} of {number(int(total[i]))}"
            if n
            else ""
            for i, n in enumerate(row)
        ]
        for exponent, row in enumerate(counts, start=first)
    ]


def _layout(
    view: RangeView, first: int, bins: int, theme: style.Theme, height: int
) -> dict[str, Any]:
    shared = ranges.layout_of(view, theme, height)
    inside = [limit.value for limit in view.limits if limit.place == "inside"]
    for shape, value in zip(shared["shapes"], inside, strict=True):
        shape.update(y0=math.log2(value), y1=math.log2(value), layer="above")
    for note, value in zip(shared["annotations"], inside, strict=False):
        note["y"] = math.log2(value)
    low = min([first - 0.5, *(math.log2(value) - 1 for value in inside)])
    high = max([first + bins - 0.5, *(math.log2(value) + 1 for value in inside)])
    if ranges.above_words(view):
        high += 4  # room for the words above the cells
    step = max(1, round((high - low) / 7))
    ticks = list(range(math.ceil(low), math.floor(high) + 1, step))
    shared["yaxis"].update(
        type="linear",
        range=[low, high],
        exponentformat=None,
        tickmode="array",
        tickvals=ticks,
        ticktext=[f"2<sup>{tick}</sup>" for tick in ticks],
        title={"text": "|finite|, powers of 2", "font": {"size": 12}},
    )
    shared["meta"] = {"id": CHART_ID, "title": title(view)}
    return shared


def title(view: RangeView) -> str:
    """One sentence that says what is shown."""
    return (
        f"Heat map of {view.tensor} in execution order: the brighter, the larger the share of "
        "elements with a magnitude in that power of 2; zeros are left out."
    )
