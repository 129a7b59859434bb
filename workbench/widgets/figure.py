"""One live plotly figure that is kept and changed, never made anew."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import plotly.graph_objects as go
import traitlets

from workbench.widgets.guard import Guard
from workbench.widgets.script import Script, plotly_version, with_loader

IDENTITY = frozenset({"type", "uid"})
CONFIG = {"displaylogo": False, "modeBarButtons": [["resetScale2d", "toImage"]]}


class _Figure(go.FigureWidget):
    """A figure widget without plotly's script in it; `plotly.js` asks for that once a page.

    The page learns of the figure once its content is there: plotly tells the page of an empty
    figure first and sends the content after, and a page that draws in between shows empty axes.
    """

    _esm = with_loader("figure.js")
    _plotly_version = traitlets.Unicode(plotly_version()).tag(sync=True)
    _complete = False

    def __init__(self, figure: Any) -> None:
        super().__init__(figure)
        self._config = CONFIG
        self.on_msg(Script().answer)
        self._complete = True
        super().open()

    def open(self) -> None:
        """Not while it is being filled."""
        if self._complete:
            super().open()

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> dict[str, Any]:
        """What the page is told; a page that is loaded anew gets the content as it is now.

        plotly would tell it of the content that the figure was made with.
        """
        state: dict[str, Any] = super().get_state(key, drop_defaults)
        if key is None and self._complete:
            now = {"_widget_data": self._data, "_widget_layout": self._layout_obj._props}
            for name, value in now.items():
                state[name] = self.trait_metadata(name, "to_json")(deepcopy(value), self)
        return state


class LiveFigure:
    """Shows figures made by `charts` in one widget.

    Args:
        clicked: Called with the x of a clicked point, as a whole number.
        guard: Runs the callback.
        place: Puts the widget into the page.
        drawn: Called when plotly has drawn the figure in the page, each time it is put there.
    """

    def __init__(
        self,
        clicked: Callable[[int], None],
        guard: Guard,
        place: Callable[[Any], None] = lambda _widget: None,
        drawn: Callable[[], None] = lambda: None,
    ) -> None:
        self._clicked, self._guard, self._place = clicked, guard, place
        self._drawn = drawn
        self._widget: Any = None

    @property
    def widget(self) -> Any:
        """The figure widget; None before the first figure was shown."""
        return self._widget

    def show(self, figure: Any, width: int) -> None:
        """Show a figure at a width in pixels, in one message to the page."""
        figure.layout.width = width
        figure.layout.paper_bgcolor = (
            "rgba(0,0,0,0)"  # the panel's own ground, as JupyterLab has it
        )
        if self._widget is None:
            self._widget = _Figure(figure)
            self._widget.on_msg(self._told)
            self._listen()
            self._place(self._widget)
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

    def _told(self, _widget: Any, content: Any, _buffers: Any) -> None:
        if isinstance(content, dict) and content.get("drawn") is True:
            self._guard.run("main", self._drawn)

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
