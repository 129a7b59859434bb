"""The tabs: toggles and one slot whose child is swapped.

A hidden figure is laid out at zero size, so a tab's content is put into the page only when it is
looked at, and a region is built on the first visit.
"""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets as w

from workbench.widgets import parts
from workbench.widgets.actions import TabChosen
from workbench.widgets.markup import esc, note
from workbench.widgets.notes import Notes
from workbench.widgets.state import TABS, State
from workbench.widgets.store import Region, Store

LABELS = {
    "origin": "1 Origin",
    "ranges": "2 Ranges",
    "timeline": "3 Timeline",
    "compare": "4 Compare",
    "evidence": "5 Evidence",
}
CHARTED = {"ranges": ("live",), "timeline": ("still", "live"), "compare": ("live",)}
"""Of tabs with charts: what must be there to draw them."""
LOADING = "Charts are being loaded …"


class Main:
    """Region: the tabs.

    Args:
        store: The panel's state.
        makers: Makes each tab's region, once, when it is first shown.
        notes: The drawer that stands under the tabs, and the button that opens it.
    """

    name = "main"

    def __init__(self, store: Store, makers: dict[str, Callable[[], Region]], notes: Notes) -> None:
        self._store, self._makers = store, makers
        self._made: dict[str, Region] = {}
        self._tabs = w.ToggleButtons(
            options=[(LABELS[tab], tab) for tab in TABS],
            value=store.state.look.tab,
            _dom_classes=("wb-tabs",),
        )
        self._tabs.observe(store.guard.wrap(self.name, self._chosen), names="value")
        self._problem = parts.html()
        self._loading = parts.html(note(esc(LOADING), "empty"))
        self._slot = parts.column([], "wb-slot")
        row = parts.row([self._tabs, notes.button], "wb-tab-row")
        inside = [row, notes.widget, self._problem, self._slot]
        self.widget = parts.column(inside, "wb-main")

    def _chosen(self) -> None:
        self._store.dispatch(TabChosen(self._tabs.value))

    def part(self, state: State) -> object:
        """The tab, and the problems of the tabs."""
        return (
            state.look.tab,
            state.charts,
            tuple(state.problem(one) for one in (self.name, state.look.tab)),
        )

    def draw(self, state: State) -> None:
        """Put the chosen tab into the slot."""
        tab = state.look.tab
        if self._tabs.value != tab:
            self._tabs.value = tab
        if tab not in self._made and state.charts not in CHARTED.get(tab, (state.charts,)):
            self._slot.children = (self._loading,)
            return
        if tab not in self._made:
            region = self._makers[tab]()
            self._made[tab] = region
            self._store.subscribe(region, lambda now: now.look.tab == tab)
        # drawn before it is put into the page: a figure changed while its view is made, or while
        # it has none any more, ends in errors in the page's console
        self._store.refresh(self._made[tab])
        wanted = self._made[tab].widget
        if self._slot.children != (wanted,):
            self._slot.children = (wanted,)
        problems = (state.problem(self.name), state.problem(tab))
        self._problem.value = "".join(parts.problem(one) for one in problems)
