"""One live plotly figure that is kept and changed, never made anew.

A ``FigureWidget`` carries plotly's whole source in its state, so a panel has one a chart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import plotly.graph_objects as go

from workbench.widgets.guard import Guard

IDENTITY = frozenset({"type", "uid"})
PATIENCE = 5.0
"""Seconds the page has to draw a change before its figure is given up."""
MOST_REMADE = 2
CONFIG = {"displaylogo": False, "modeBarButtons": [["resetScale2d", "toImage"]]}


class _Filled(go.FigureWidget):
    """A figure widget that the page learns of once its content is there.

    plotly tells the page of an empty figure first and sends the content after; a page that draws
    in between shows empty axes for good.
    """

    _complete = False

    def __init__(self, figure: Any) -> None:
        super().__init__(figure)
        self._config = CONFIG
        self._complete = True
        super().open()

    def open(self) -> None:
        """Not while it is being filled."""
        if self._complete:
            super().open()


class LiveFigure:
    """Shows figures made by `charts` in one widget.

    A page that needs more than two seconds to load plotly the first time, on a busy machine, never
    hears of a change to that figure (anywidget gives up on it) and would go on showing the chart
    of another run. So every change must be answered by the page; else the figure is made anew.

    Args:
        clicked: Called with the x of a clicked point, as a whole number.
        guard: Runs the callback.
        place: Puts the widget into the page, also a new one in the place of the one before.
    """

    def __init__(
        self,
        clicked: Callable[[int], None],
        guard: Guard,
        place: Callable[[Any], None] = lambda _widget: None,
    ) -> None:
        self._clicked, self._guard, self._place = clicked, guard, place
        self._widget: Any = None
        self._answered = 0
        self._remade = 0

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
        self._expect_answer()

    def _expect_answer(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # a script: no page to wait for
        loop.call_later(PATIENCE, self._check, self._widget, self._widget._last_layout_edit_id)

    def _check(self, widget: Any, edit: int) -> None:
        """Make the figure anew where the page shows it and did not draw a change."""
        seen = widget is self._widget and bool(widget._view_count)
        if not seen or self._answered >= edit or self._remade >= MOST_REMADE:
            return
        self._remade += 1
        self._guard.run("main", lambda: self._replace(go.Figure(widget)))

    def _replace(self, figure: Any) -> None:
        before = self._widget
        self._make(figure)
        before.close()

    def _answer(self, change: Any) -> None:
        if change["new"]:
            self._answered = max(self._answered, int(change["new"].get("layout_edit_id") or 0))

    def _make(self, figure: Any) -> None:
        # made with its content: an empty one that is filled before it is shown ends in errors
        self._widget = _Filled(figure)
        self._answered = 0
        self._widget.observe(self._answer, names="_js2py_layoutDelta")
        self._listen()
        self._place(self._widget)

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
