"""The Ranges tab: per-layer ranges as one live chart, the layer list and the layer card."""

from __future__ import annotations

from typing import Any

import ipywidgets as w

from workbench.charts import heat as heat_chart
from workbench.charts import ranges as ranges_chart
from workbench.charts.arrays import tensor_kinds
from workbench.charts.grouping import MAX_LAYERS
from workbench.widgets import parts
from workbench.widgets.actions import Looked
from workbench.widgets.figure import LiveFigure
from workbench.widgets.layer_card import card
from workbench.widgets.layer_rows import LayerRow, LayerRows, by_risk
from workbench.widgets.layer_tree import options as list_options
from workbench.widgets.markup import esc, link, note
from workbench.widgets.parts import Act
from workbench.widgets.state import ORIGINAL, RECORDED, VIEWS, State
from workbench.widgets.store import Store
from workbench.widgets.words import seconds

HEIGHT = 308
LIST_WIDTH = 270


class Ranges:
    """Region: the chart, its options, the layer list and the card of one layer."""

    name = "ranges"

    def __init__(self, store: Store, act: Act) -> None:
        self._store, self._act = store, act
        wrap = store.guard.wrap
        self._figure = LiveFigure(self._clicked, store.guard, self._place)
        self._tensor = w.Dropdown(options=["activations"], layout=w.Layout(width="130px"))
        self._tensor.observe(
            wrap(self.name, lambda: self._look("tensor_kind", self._tensor.value)), names="value"
        )
        self._view = w.Dropdown(
            options=[(one.capitalize(), one) for one in VIEWS], layout=w.Layout(width="96px")
        )
        self._view.observe(
            wrap(self.name, lambda: self._look("view", self._view.value)), names="value"
        )
        self._overlay = w.Checkbox(description="", indent=False, layout=w.Layout(width="auto"))
        self._overlay.observe(
            wrap(self.name, lambda: self._look("overlay", self._overlay.value)), names="value"
        )
        self._search = w.Text(placeholder="/ search layers", layout=w.Layout(width="auto"))
        self._search.add_class("wb-search")
        self._search.observe(
            wrap(self.name, lambda: self._look("search", self._search.value)), names="value"
        )
        self._list = w.Select(options=[], rows=14, layout=w.Layout(width="auto"))
        self._list.add_class("wb-layer-list")
        self._list.observe(wrap(self.name, self._listed), names="value")
        self._shown_of = parts.html("", "wb-dim")
        self._card = parts.html("", "wb-card")
        self._about = parts.html("", "wb-dim")
        self._empty = parts.html("", "wb-empty")
        bar = parts.row([self._tensor, self._view, self._overlay, self._about], "wb-chart-bar")
        self._chart = parts.column([], "wb-chart")
        side = parts.column([self._search, self._list, self._shown_of], "wb-layers")
        right = parts.column([bar, self._chart, self._card], "wb-ranges-main")
        self._full = parts.row([side, right], "wb-ranges")
        self.widget = parts.column([self._empty, self._full])
        self._rows: list[LayerRow] = []
        self._kept = LayerRows()
        self._drawn: tuple[Any, ...] = ()
        self._drawing = False

    def _look(self, field: str, value: Any) -> None:
        if not self._drawing and value is not None:
            self._store.dispatch(Looked(((field, value),)))

    def _listed(self) -> None:
        value = self._list.value
        if isinstance(value, str):  # a group opens; "^" leads back up
            self._look("group", value.removeprefix("^"))
        else:
            self._look("layer", value)

    def _clicked(self, place: int) -> None:
        """A click on the chart: its x is a layer's place, unless layers are grouped."""
        if len(self._rows) <= MAX_LAYERS:
            self._store.dispatch(Looked((("layer", place),)))

    def _place(self, figure: Any) -> None:
        self._chart.children = [figure]

    def part(self, state: State) -> object:
        """Which table is shown and how it is looked at."""
        run = layers_run(state)
        version = (run.name, run.layers_version) if run is not None else id(state.saved_layers)
        other = overlay_run(state)
        over = (other.name, other.layers_version) if other is not None else None
        look = state.look
        opened = look.open & {"upstream", "histogram"}
        chosen = (look.tensor_kind, look.view, look.overlay, look.search, look.layer, look.group)
        opinion = (*chosen, look.dark, look.width, opened)
        return (version, over, opinion, state.activity is not None, state.takes)

    def draw(self, state: State) -> None:
        """Draw the chart, or say why there is none and what would make one."""
        layers, source = shown_layers(state)
        parts.show(self._full, layers is not None)
        self._empty.value = "" if layers is not None else empty_text(state)
        if layers is None:
            return
        self._drawing = True
        try:
            kind = self._draw_options(state, layers, source)
            self._rows = self._kept.of(layers, kind)
            self._draw_list(state)
            self._draw_chart(state, layers, kind)
        finally:
            self._drawing = False

    def _draw_options(self, state: State, layers: Any, source: str) -> str:
        kinds = tensor_kinds(layers) or ("activations",)
        kind = state.look.tensor_kind if state.look.tensor_kind in kinds else kinds[0]
        options = [(one.capitalize(), one) for one in kinds]
        if list(self._tensor.options) != options:
            self._tensor.options = options
        self._tensor.value = kind
        self._view.value = state.look.view
        other = overlay_run(state)
        parts.show(self._overlay, other is not None and state.look.view == "ranges")
        if other is not None:
            self._overlay.description = f"{'◇' if other.diagnostic else '●'} {other.name} beside it"
            self._overlay.value = state.look.overlay
        saved = layers_run(state) is None
        again = " " + link("run_to_first_bad", "Replay here") if saved else ""
        self._about.value = esc(source) + again
        return kind

    def _draw_list(self, state: State) -> None:
        look = state.look
        options = list_options(self._rows, look.search, look.group)
        if list(self._list.options) != options:
            self._list.options = options
        chosen = look.layer
        found = by_risk(self._rows, look.search)
        if chosen < 0 and found:
            # the first one that the list names: the card must be that of the marked row
            listed = (place for _, place in options if isinstance(place, int))
            chosen = next(listed, found[0].index)
        self._list.value = chosen if any(value == chosen for _, value in options) else None
        self._list.rows = 1 if look.width < parts.NARROW else 14
        self._shown_of.value = esc(list_words(self._rows, len(found), len(options), look.search))
        at = self._rows[chosen] if 0 <= chosen < len(self._rows) and found else None
        text = "No layer has this name." if at is None else card(at, self._rows, look.open)
        self._card.value = text

    def _draw_chart(self, state: State, layers: Any, kind: str) -> None:
        other = overlay_run(state)
        over = other.layers if other is not None and state.look.overlay else None
        run = layers_run(state)
        dashed = run is not None and run.diagnostic
        if over is not None and dashed and not other.diagnostic:
            layers, over, dashed = over, layers, False  # Original is the one that is filled
        view = state.look.view if "exponents" in layers.columns else "ranges"
        wanted = (layers, over, kind, view, state.look.dark, state.look.width)
        if len(wanted) == len(self._drawn) and all(map(_same, wanted, self._drawn)):
            return  # only the list or the card changed
        self._drawn = wanted
        theme: Any = "dark" if state.look.dark else "light"
        if view == "heat map" and any(row.exponents for row in self._rows):
            figure = heat_chart.figure(layers, kind, theme=theme, height=HEIGHT)
        else:
            figure = ranges_chart.figure(
                layers, kind, over, theme, height=HEIGHT, diagnostic=dashed
            )
        self._figure.show(figure, chart_width(state.look.width))


def _same(a: Any, b: Any) -> bool:
    """Tables are told apart by identity: comparing them element by element costs and says less."""
    return a is b or (isinstance(a, str | int) and a == b)


def list_words(rows: list[LayerRow], found: int, shown: int, search: str) -> str:
    """How much of the layers the list shows, and in which order."""
    if search.strip():
        cut = f"first {shown:,} of " if shown < found else ""
        return f"{cut}{found:,} of {len(rows):,}, riskiest first"
    marked = sum(1 for row in rows if row.mark.strip())
    if not marked:
        return f"none of {len(rows):,} looks risky"
    return f"{marked:,} of {len(rows):,} look risky; they stand first"


def chart_width(panel: int) -> int:
    """Width of the ranges chart for a panel's width, in pixels."""
    return parts.content_width(panel) - (0 if panel < parts.NARROW else LIST_WIDTH)


def layers_run(state: State) -> Any:
    """The run whose layers are shown: the shown one, else Original."""
    for run in (state.shown, state.run(ORIGINAL)):
        if run is not None and run.layers is not None:
            return run
    return None


def shown_layers(state: State) -> tuple[Any, str]:
    """The layers table to show and whose it is, in words."""
    run = layers_run(state)
    if run is not None:
        conditions = "recorded conditions" if not run.diagnostic else "diagnostic"
        glyph = "◇" if run.diagnostic else "●"
        return run.layers, f"{glyph} {run.name}, replayed here with probes on ({conditions})"
    if state.saved_layers is not None:
        return state.saved_layers, state.saved_from
    return None, ""


def overlay_run(state: State) -> Any:
    """The other run that can be drawn over the shown one."""
    base = layers_run(state)
    if base is None:
        return None
    others = [run for run in state.runs if run.layers is not None and run.name != base.name]
    return others[-1] if others else None


def empty_text(state: State) -> str:
    """Why there is no chart, and the one step that makes one."""
    if state.activity is not None:
        return note("Ranges come with the traced replay, which runs after the bare one.")
    run = state.shown
    if run is not None and state.look.shown != RECORDED and run.reached:
        return note(esc(f"No ranges of {run.name} yet. ") + link("trace", "Trace it"))
    takes = seconds(state.takes)
    label = "Run to first bad" + (f", {takes}" if takes else "")
    return note("Ranges come from a replay. " + link("run_to_first_bad", label))
