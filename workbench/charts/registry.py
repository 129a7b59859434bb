"""The charts there are: a new one is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from workbench.charts import ranges, timeline
from workbench.charts.drawing import Drawing
from workbench.charts.rows import Rows


@dataclass(frozen=True)
class Chart:
    """One chart and its twins; all take the same data arguments.

    Attributes:
        name: Its name in code.
        title: Its name on screen.
        needs: What it is drawn from: the ``layers`` table of a trace, or the ``ledger``.
        figure: To a plotly figure.
        table: To rows of an HTML table.
        drawing: To a static picture.
    """

    name: str
    title: str
    needs: Literal["layers", "ledger"]
    figure: Callable[..., Any]
    table: Callable[..., Rows]
    drawing: Callable[..., Drawing]


_ALL = (
    Chart("ranges", "Ranges", "layers", ranges.figure, ranges.table, ranges.drawing),
    Chart("timeline", "Timeline", "ledger", timeline.figure, timeline.table, timeline.drawing),
)
CHARTS: dict[str, Chart] = {chart.name: chart for chart in _ALL}
