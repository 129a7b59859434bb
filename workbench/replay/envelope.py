"""The usual envelope of a series over steps, and the first value outside of it.

Median and median absolute deviation over the earlier steps, of logarithms where a series is
positive: a range that grows or collapses by a factor counts the same both ways. This says that a
value is unusual, not that it is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from workbench.evidence.wording import counted, number

if TYPE_CHECKING:
    from workbench.evidence import Table

EARLIER = 4
"""Fewest earlier values that make an envelope."""
DEVIATIONS = 8.0
"""Robust standard deviations from the median that are still usual."""
FACTOR = 4.0
"""A value within this factor of the median is usual, however little the earlier ones varied."""
_TO_SIGMA = 1.4826

_STEP_SERIES = {"loss": "the loss", "gradient_norm": "the gradient norm"}
_PARAMETER_SERIES = {
    "absmax": "the largest magnitude of '{}'",
    "rms": "the root mean square of '{}'",
    "gradient_absmax": "the largest gradient of '{}'",
    "update_ratio": "the update of '{}', relative to its size,",
}


@dataclass(frozen=True)
class Outlier:
    """A value that left the usual envelope of its series.

    Attributes:
        step: The step.
        series: Column of the table.
        parameter: The parameter, or an empty text for the step's own values.
        value: The value.
        usual: Median over the earlier steps.
        factor: How many times the median it is, or NaN where signs differ.
        earlier: How many earlier steps there were.
        unknown: First and last of the steps right before it that were not replayed as they ran, or
            None.
    """

    step: int
    series: str
    parameter: str
    value: float
    usual: float
    factor: float
    earlier: int
    unknown: tuple[int, int] | None = None

    def sentence(self, last: int) -> str:
        """Say it, with the distance to the incident's step."""
        names = _PARAMETER_SERIES if self.parameter else _STEP_SERIES
        what = names[self.series].format(self.parameter)
        ago = last - self.step
        when = "in the failing step itself" if ago == 0 else f"{counted(ago, 'step')} earlier"
        before, doubt = f"the {self.earlier:,} steps before", ""
        if self.unknown is not None:
            first, until = self.unknown
            before = f"the {self.earlier:,} earlier steps that repeat the record"
            steps = (
                f"Step {first:,} was" if first == until else f"Steps {first:,} to {until:,} were"
            )
            doubt = f" {steps} not replayed as recorded, so it may have left it before."
        return (
            f"At step {self.step:,}, {when}, {what} left its usual envelope: "
            f"{number(self.value)}, where {before} had a median of {number(self.usual)}.{doubt}"
        )

    def to_data(self, last: int) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "step": self.step,
            "steps_before": last - self.step,
            "series": self.series,
            "parameter": self.parameter or None,
            "value": self.value,
            "usual": self.usual,
            "earlier": self.earlier,
            "unknown": None if self.unknown is None else list(self.unknown),
            "sentence": self.sentence(last),
        }


def first_outlier(steps: Table, ranges: Table) -> Outlier | None:
    """The earliest value outside its envelope; of one step's, the one that is furthest out.

    Args:
        steps: One row a step. Those whose ``follows`` is False start from other values than the
            recorded ones: what they computed is no part of the way to the incident.
        ranges: One row a step and parameter.
    """
    rows = zip(steps.columns.get("step", ()), steps.columns.get("follows", ()), strict=True)
    departed = {int(step) for step, follows in rows if not follows}
    found = []
    for series, parameter, where, values in _series(steps, ranges, departed):
        place = leaves(values)
        if place is None:
            continue
        usual = median(values[:place])
        factor = values[place] / usual if usual and values[place] / usual > 0 else math.nan
        between = sorted(step for step in departed if where[place - 1] < step < where[place])
        found.append(
            Outlier(
                where[place], series, parameter, values[place], usual, factor, place,
                (between[0], between[-1]) if between else None,
            )
        )  # fmt: skip
    return min(found, key=lambda o: (o.step, -_distance(o.factor)), default=None)


def leaves(values: Sequence[float]) -> int | None:
    """Index of the first value that leaves the envelope of those before it, or None."""
    logs = all(value > 0 for value in values)
    series = [math.log(value) for value in values] if logs else list(values)
    for place in range(EARLIER, len(series)):
        earlier = series[:place]
        middle = median(earlier)
        spread = _TO_SIGMA * median([abs(value - middle) for value in earlier])
        least = math.log(FACTOR) if logs else (FACTOR - 1) * abs(middle)
        if abs(series[place] - middle) > max(DEVIATIONS * spread, least):
            return place
    return None


def _distance(factor: float) -> float:
    return math.inf if math.isnan(factor) else abs(math.log(factor))


def _series(
    steps: Table, ranges: Table, departed: Set[int]
) -> Iterator[tuple[str, str, list[int], list[float]]]:
    every = range(len(steps))
    for name in _STEP_SERIES:
        yield name, "", *_finite(steps, name, every, departed)
    by_parameter: dict[str, list[int]] = {}
    for row, parameter in enumerate(ranges.columns.get("parameter", ())):
        by_parameter.setdefault(str(parameter), []).append(row)
    for parameter, rows in by_parameter.items():
        for name in _PARAMETER_SERIES:
            yield name, parameter, *_finite(ranges, name, rows, departed)


def _finite(
    table: Table, name: str, rows: Iterable[int], departed: Set[int]
) -> tuple[list[int], list[float]]:
    """Steps and values of a column where it is finite, without the steps that departed."""
    steps, column = table.columns.get("step", ()), table.columns.get(name, ())
    pairs = [(int(steps[r]), float(column[r])) for r in rows]
    kept = [(s, v) for s, v in pairs if math.isfinite(v) and s not in departed]
    return [s for s, _ in kept], [v for _, v in kept]
