"""What a ranges chart draws, computed once for figure, table and drawing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xarray as xr

from workbench.charts.arrays import TableLike, layer_arrays
from workbench.charts.finite import FloatArray, reduce_finite
from workbench.charts.grouping import MAX_LAYERS, group_layers
from workbench.charts.words import KINDS, number
from workbench.errors import UsageError
from workbench.numerics import dtype_limits

# A limit this many decades outside of the data is named at the edge instead of drawn.
_NEAR_DECADES = 4.0
# Part of the plot's height that a line of letters takes at its top.
_LINE = 0.12
# The plot always reaches the limits of a dtype whose largest value is below this.
_NARROW = 1e6


@dataclass(frozen=True)
class Limit:
    """A dtype limit: its value, its words, and whether it lies inside the plot."""

    value: float
    text: str
    place: str  # "inside", or "above" the plot


@dataclass(frozen=True)
class RangeView:
    """Arrays of a ranges chart; index ``i`` is the i-th layer in execution order.

    Attributes:
        layers: The dataset behind it, grouped when there were too many layers.
        tensor: Which kind of tensor.
        low: Lower edge of the band, NaN where nothing can be drawn on a log axis.
        high: Largest magnitude of finite elements, NaN likewise.
        rms: Root mean square of finite elements, NaN likewise.
        marks: ``(layer, kind, count)`` of every non-finite mark; never thinned.
        floor: Lower end of the y axis.
        ceiling: Upper end of the y axis.
        limits: Limits of the dtypes that occur.
        from_smallest: Whether the band starts at the smallest magnitude that is not zero; else,
            in traces of older versions, at the root mean square.
    """

    layers: xr.Dataset
    tensor: str
    low: FloatArray
    high: FloatArray
    rms: FloatArray
    marks: tuple[tuple[int, str, int], ...]
    floor: float
    ceiling: float
    limits: tuple[Limit, ...]
    from_smallest: bool = False

    @property
    def labels(self) -> list[str]:
        """Name of each layer."""
        return [str(label) for label in self.layers["label"].values]

    @property
    def size(self) -> int:
        """Number of layers shown."""
        return int(self.layers.sizes["layer"])

    @property
    def line_at_top(self) -> bool:
        """Whether a limit's line stands where the limits far above are named."""
        span = math.log10(self.ceiling) - math.log10(self.floor)
        inside = [limit.value for limit in self.limits if limit.place == "inside"]
        return any(math.log10(self.ceiling) - math.log10(v) < _LINE * span for v in inside)


def range_view(
    layers: TableLike, tensor: str = "activations", max_layers: int = MAX_LAYERS
) -> RangeView:
    """Prepare a ranges chart.

    Args:
        layers: The layers table of a trace.
        tensor: Kind of tensor, as ``arrays.layer_arrays`` knows them.
        max_layers: Above this many, layers are grouped by module.

    Raises:
        UsageError: The kind is unknown or the table has no row of it.
    """
    data = layer_arrays(layers, tensor)
    if data.sizes["layer"] == 0:
        raise UsageError(
            f"The trace holds no {tensor!r}, so there is no range to draw. "
            "Choose another kind of tensor, or replay further and trace again."
        )
    data = group_layers(data, max_layers)
    high = _positive(data["absmax"].values)
    rms = _positive(data["rms"].values)
    absmin = _positive(data["absmin"].values)
    low = np.where(np.isfinite(absmin), absmin, rms)
    floor, ceiling = _span(np.concatenate([high, rms, low]))
    limits = _limits(sorted({str(name) for name in data["dtype"].values}), floor, ceiling)
    inside = [limit.value for limit in limits if limit.place == "inside"]
    above = any(limit.place == "above" for limit in limits) and max(inside, default=0.0) < ceiling
    floor, ceiling = min([floor, *inside]), max([ceiling, *inside])
    # what is named far above needs room of its own above the data, a line of letters high
    room = max(0.4, _LINE * (math.log10(ceiling) - math.log10(floor))) if above else 0.4
    return RangeView(
        layers=data,
        tensor=tensor,
        # Where the smallest magnitude was not traced, the band starts at the root mean square.
        low=low,
        high=high,
        rms=rms,
        marks=_marks(data),
        floor=10 ** (math.log10(floor) - 0.4),
        ceiling=10 ** min(math.log10(ceiling) + room, 308.0),
        limits=limits,
        from_smallest=bool(np.isfinite(absmin).any()),
    )


def _positive(values: npt.NDArray[np.float64]) -> FloatArray:
    """Values a log axis can show; zero and non-finite ones become NaN (they are in counters)."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(values) & (values > 0), values, math.nan)


def _span(values: FloatArray) -> tuple[float, float]:
    low, high = reduce_finite(values, "min").value, reduce_finite(values, "max").value
    if low is None or high is None:
        return 1e-3, 1e3
    # At least two decades, so that a flat model does not fill the plot with noise.
    return (low, high) if high / low >= 100 else (low / 10, high * 10)


def _limits(dtypes: list[str], floor: float, ceiling: float) -> tuple[Limit, ...]:
    found: dict[tuple[str, float], list[str]] = {}
    for name in dtypes:
        try:
            limits = dtype_limits(name)
        except UsageError:
            continue  # a dtype name this torch does not know has no line
        if not limits.floating:
            continue
        found.setdefault(("largest", limits.max), []).append(name)
        found.setdefault(("smallest", limits.smallest_subnormal), []).append(name)
    drawn = []
    for (word, value), names in sorted(found.items(), key=lambda item: item[0][1]):
        place = _place(value, floor, ceiling, narrow=_is_narrow(names))
        text = f"{word} {' and '.join(names)}, {_value(value)}"
        if place != "below":
            drawn.append(Limit(value, text, place))
    return tuple(drawn)


def _is_narrow(names: list[str]) -> bool:
    return any(dtype_limits(name).max < _NARROW for name in names)


def _value(value: float) -> str:
    # 65504 is how people know this limit: no separator.
    return f"{value:.0f}" if 1 <= value < _NARROW else number(value)


def _place(value: float, floor: float, ceiling: float, *, narrow: bool) -> str:
    if narrow:
        return "inside"
    if value > ceiling and math.log10(value / ceiling) > _NEAR_DECADES:
        return "above"
    if value < floor and math.log10(floor / value) > _NEAR_DECADES:
        return "below"
    return "inside"


def _marks(data: xr.Dataset) -> tuple[tuple[int, str, int], ...]:
    return tuple(
        (int(row), kind, int(data[kind].values[row]))
        for kind in KINDS
        for row in np.flatnonzero(data[kind].values)
    )
