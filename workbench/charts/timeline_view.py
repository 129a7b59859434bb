"""What a timeline draws, computed once for figure, table and drawing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.charts.finite import FloatArray, reduce_finite
from workbench.charts.ledger_series import SERIES, LedgerSeries, ledger_series
from workbench.charts.words import KINDS
from workbench.errors import UsageError

STEPS_BEFORE = 200
WORDS = {
    "loss": "loss",
    "grad_norm": "gradient norm",
    "scale": "loss scale",
    "learning_rate": "learning rate",
}
# A series that spans more than this is read on a log axis.
_LOG_RATIO = 50.0


@dataclass(frozen=True)
class Series:
    """One row of the timeline.

    Attributes:
        name: Field name.
        values: One per record; NaN where not finite or not recorded.
        kinds: One per record: ``finite``, ``nan``, ``pos_inf``, ``neg_inf`` or ``missing``.
        low: Lower end of its axis.
        high: Upper end of its axis.
        log: Whether the axis is logarithmic.
    """

    name: str
    values: FloatArray
    kinds: tuple[str, ...]
    low: float
    high: float
    log: bool

    @property
    def marks(self) -> list[tuple[int, str]]:
        """``(record, kind)`` of every non-finite value."""
        return [(i, kind) for i, kind in enumerate(self.kinds) if kind in KINDS]

    @property
    def missing(self) -> list[int]:
        """Records without this value, where others have it: a gap that must not pass in silence."""
        if not self.recorded:
            return []
        return [i for i, kind in enumerate(self.kinds) if kind == "missing"]

    @property
    def recorded(self) -> bool:
        """Whether any record has this field."""
        return any(kind != "missing" for kind in self.kinds)


@dataclass(frozen=True)
class TimelineView:
    """Arrays of a timeline.

    Attributes:
        steps: Step of each record.
        series: The four rows, top to bottom.
        skips: ``(record, by)`` of every update that was withheld.
        alerts: ``(record, messages)`` of every record with an alert.
        incident: Step of the incident, None when the ledger has none.
    """

    steps: tuple[int, ...]
    series: tuple[Series, ...]
    skips: tuple[tuple[int, str], ...]
    alerts: tuple[tuple[int, str], ...]
    incident: int | None


def timeline_view(
    ledger: Sequence[Mapping[str, Any]],
    incident: int | None = None,
    before: int = STEPS_BEFORE,
    rank: int | None = None,
) -> TimelineView:
    """Prepare a timeline.

    Args:
        ledger: L1 records in the order they were written.
        incident: Step of the incident.
        before: How many steps before the incident are shown.
        rank: Keep only this rank's records.

    Raises:
        UsageError: The ledger has no record to show.
    """
    data = ledger_series(ledger, rank)
    if len(data["step"]) == 0:
        raise UsageError(
            f"The ledger has no record{'' if rank is None else f' of rank {rank}'}, so there is "
            "no timeline to draw. Choose another rank, or record with a longer ledger window."
        )
    steps = data["step"]
    first = int(steps.max()) - before if incident is None else incident - before
    shown = np.flatnonzero(steps >= first)
    data = {name: values[shown] for name, values in data.items()}
    skips = [(i, str(by)) for i, by in enumerate(data["skipped_by"]) if by != "none"]
    return TimelineView(
        steps=tuple(int(step) for step in data["step"]),
        series=tuple(_series(data, name) for name in SERIES),
        skips=tuple(skips),
        alerts=tuple((i, str(said)) for i, said in enumerate(data["alerts"]) if said),
        incident=incident,
    )


def _series(data: LedgerSeries, name: str) -> Series:
    values = data[name]
    kinds = tuple(str(kind) for kind in data[f"{name}_kind"])
    low, high = reduce_finite(values, "min").value, reduce_finite(values, "max").value
    if low is None or high is None:
        low, high = 0.0, 1.0
    log = low > 0 and high / low > _LOG_RATIO
    low, high = _padded(low, high, log=log)
    return Series(name, values, kinds, low, high, log)


def _padded(low: float, high: float, *, log: bool) -> tuple[float, float]:
    if log:
        return low / 1.5, min(high * 2.5, 1e308)
    span = high - low
    if span == 0 or not math.isfinite(span):
        span = abs(high) or 1.0
    # The room above is where non-finite marks stand.
    return low - 0.12 * span, high + 0.3 * span
