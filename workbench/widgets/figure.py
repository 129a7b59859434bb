"""One live plotly figure that is kept and changed, never made anew.

A ``FigureWidget`` carries plotly's whole source in its state, so a panel has one a chart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import plotly.graph_objects as go

from workbench.widgets.guard import Guard

IDENTITY = frozenset({"type", "uid"})


class _Filled(go.FigureWidget):
    """A figure widget that the page learns of once its content is there.

    plotly tells the page of an empty figure first and sends the content after; a page that draws
    in between shows empty axes for good.
    """

    _complete = False

    def __init__(self, figure: Any) -> None:
        super().__init__(figure)
        self._complete = True
        super().open()

    def open(self) -> None:
        """Not while it is being filled."""
        if self._complete:
            super().open()


class LiveFigure:
    """Shows figures made by `charts` in one widget.

    Args:
        clicked: Called with the x of a clicked point, as a whole number.
        guard: Runs the callback.
    """

    def __init__(self, clicked: Callable[[int], None], guard: Guard) -> None:
        self._clicked, self._guard = clicked, guard
        self._widget: Any = None

    @property
    def widget(self) -> Any:
        """The figure widget; None before the first figure was shown."""
        return self._widget

    def show(self, figure: Any, width: int) -> None:
        """Show a figure at a width in pixels, in one message to the page."""
        figure.layout.width = width
        if self._widget is None:
            self._make(figure)
            return
        live = self._widget
        with live.batch_update():
            if [t.type for t in live.data] == [t.type for t in figure.data]:
                for old, new in zip(live.data, figure.data, strict=True):
                    _assign(old, new.to_plotly_json())
            else:
                live.data = ()
                live.add_traces(figure.data)
                self._listen()
            _assign(live.layout, figure.layout.to_plotly_json())

    def _make(self, figure: Any) -> None:
        # made with its content: an empty one that is filled before it is shown ends in errors
        self._widget = _Filled(figure)
        self._widget._config = {
            "displaylogo": False,
            "modeBarButtons": [["resetScale2d", "toImage"]],
        }
        self._listen()

    def _listen(self) -> None:
        for trace in self._widget.data:
            trace.on_click(self._on_click)

    def _on_click(self, _trace: Any, points: Any, _state: Any) -> None:
        if points.xs:
            self._guard.run("ranges", lambda: self._clicked(round(float(points.xs[0]))))


def _assign(old: Any, new: dict[str, Any]) -> None:
    """Give a trace or a layout the properties of another; what stays equal is not sent.

    ``update(overwrite=True)`` would take the traces' identity away, and the page draws nothing.
    """
    before = old.to_plotly_json()
    for key in before.keys() - new.keys() - IDENTITY:
        old[key] = None
    for key, value in new.items():
        if key not in IDENTITY and not _same(before.get(key), value):
            old[key] = value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(np.asarray(a), np.asarray(b))
    return type(a) is type(b) and bool(a == b)
