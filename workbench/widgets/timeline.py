"""The Timeline tab: loss, gradient norm, scale and learning rate. It needs only the ledger."""

from __future__ import annotations

from typing import Any

from workbench.charts import timeline as timeline_chart
from workbench.charts.still import still
from workbench.charts.style import Theme
from workbench.charts.timeline_view import TimelineView, timeline_view
from workbench.errors import BundleError
from workbench.widgets import parts
from workbench.widgets.actions import Looked
from workbench.widgets.markup import esc, note
from workbench.widgets.parts import Act
from workbench.widgets.record_card import alert_lines, record_card
from workbench.widgets.state import State
from workbench.widgets.store import Store

HEIGHT = 346


class Timeline:
    """Region: the recorded series around the incident.

    Args:
        store: The panel's state.
        act: Not used: the timeline starts nothing. A click on a step shows its record.
        bundle: The opened bundle; its ledger is read on first sight.
    """

    name = "timeline"

    def __init__(self, store: Store, act: Act, bundle: Any) -> None:
        del act
        self._store, self._bundle = store, bundle
        self._ledger: list[dict[str, Any]] | None = None
        self._view: TimelineView | None = None
        self._figure: Any = None
        self._still: Any = None
        self._empty = parts.html("", "wb-empty")
        self._place = parts.column([])
        self._chart = parts.column([self._place], "wb-chart")
        self._card = parts.html("", "wb-card")
        self._alerts = parts.html("")
        inside = [self._empty, self._chart, self._card, self._alerts]
        self.widget = parts.column(inside, "wb-timeline")

    def _clicked(self, step: int) -> None:
        self._store.dispatch(Looked((("record", step),)))

    def _put(self, figure: Any) -> None:
        self._place.children = (figure,)

    def _drawn(self) -> None:
        """The first view goes; it stands last, since the page makes anew what comes after it."""
        if self._still is not None:
            self._chart.children = (self._place,)
            self._still.close()
            self._still = None

    def part(self, state: State) -> object:
        """Theme, width and the step looked at; the ledger never changes."""
        return (state.charts, state.look.dark, state.look.width, state.look.record)

    def draw(self, state: State) -> None:
        """Draw the series, or say that none were recorded."""
        if self._ledger is None:
            why = "The bundle has no ledger, so there is no timeline."
            try:
                self._ledger = self._bundle.ledger()
            except BundleError as error:
                self._ledger, why = [], str(error)
            self._empty.value = "" if self._ledger else note(esc(why))
        if not self._ledger:
            return
        incident = self._bundle.manifest.step
        chosen = state.look.record if state.look.record >= 0 else incident
        self._card.value = record_card(self._ledger, chosen, incident)
        self._alerts.value = alert_lines(self._ledger)
        if self._view is None:
            rank = self._bundle.manifest.rank
            self._view = timeline_view(self._ledger, incident, rank=rank)
        theme: Theme = "dark" if state.look.dark else "light"
        spec = timeline_chart.spec(self._view, theme, HEIGHT, chosen)
        self._show(spec, parts.content_width(state.look.width), live=state.charts == "live")

    def _show(self, spec: dict[str, Any], width: int, *, live: bool) -> None:
        """Show the chart: as a figure where plotly is there, as its first view before."""
        if not live and self._still is None:
            self._still = parts.html("", "wb-still")
            self._chart.children = (self._place, self._still)
        if self._still is not None:
            self._still.value = still(spec, width)
        if not live:
            return
        if self._figure is None:
            from workbench.widgets.figure import LiveFigure

            self._figure = LiveFigure(self._clicked, self._store.guard, self._put, self._drawn)
        self._figure.show(timeline_chart.as_figure(spec), width)
