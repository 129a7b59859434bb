"""The Compare tab: two runs or two bundles, masks before errors; sweep, minimal set and ladder."""

from __future__ import annotations

from typing import Any

import ipywidgets as w

from workbench.widgets import compare_text as text
from workbench.widgets import parts
from workbench.widgets.actions import Looked
from workbench.widgets.jobs import START_SECONDS
from workbench.widgets.markup import esc, link, note
from workbench.widgets.parts import Act
from workbench.widgets.saved_results import read_results
from workbench.widgets.state import ORIGINAL, Result, State
from workbench.widgets.store import Store
from workbench.widgets.words import seconds

NAMES = ("comparison", "bundles", "sweep", "minimal", "ladder")
SWEEP_CELLS = 10
"""About how many runs a sweep of the usual changes takes."""
LEAST_RUN = 0.4
"""Seconds that the smallest run takes with its conditions set and unset."""


class Compare:
    """Region: the choice of two runs, and everything that was compared.

    Args:
        store: The panel's state.
        act: Starts comparisons.
        bundle: The opened bundle; earlier results beside it are read on first sight.
        other: Gives the bundle it is compared with, or None.
    """

    name = "compare"

    def __init__(self, store: Store, act: Act, bundle: Any, other: Any) -> None:
        self._store, self._bundle, self._other = store, bundle, other
        wrap = store.guard.wrap
        self._saved: dict[str, Result] | None = None
        self._first = w.Dropdown(options=[ORIGINAL], layout=w.Layout(width="130px"))
        self._second = w.Dropdown(options=[""], layout=w.Layout(width="130px"))
        for field in (self._first, self._second):
            field.observe(wrap(self.name, self._chosen), names="value")
        self._run = parts.button(
            "Compare", wrap(self.name, lambda: act("compare")), classes=("wb-primary",)
        )
        self._bundles = parts.button(
            "Compare bundles", wrap(self.name, lambda: act("compare_bundles"))
        )
        self._about = parts.html("", "wb-dim")
        between = parts.html("with")
        choice = [self._first, between, self._second, self._run, self._bundles, self._about]
        self._bar = parts.row(choice, "wb-compare-bar")
        self._body = parts.html("", "wb-compare")
        self.widget = parts.column([self._bar, self._body])
        self._drawing = False

    def _chosen(self) -> None:
        if not self._drawing and self._first.value and self._second.value is not None:
            against = (self._first.value, self._second.value)
            self._store.dispatch(Looked((("against", against),)))

    def part(self, state: State) -> object:
        """The runs, what was chosen, and every result."""
        runs = tuple((run.name, run.changed, run.finished) for run in state.runs)
        opened = state.look.open & {"all_tensors"}
        busy = state.activity is not None
        return (runs, state.look.against, state.results, opened, busy, state.takes)

    def draw(self, state: State) -> None:
        """Draw the choice and what was found."""
        if self._saved is None:
            self._saved = read_results(self._bundle)
        self._draw_choice(state)
        opened = "all_tensors" in state.look.open
        blocks = [
            self._two_runs(state, opened),
            self._two_bundles(state, opened),
            self._sweep(state),
            self._ladder(state),
        ]
        self._body.value = "".join(blocks)

    def _result(self, state: State, name: str) -> Result | None:
        return state.result(name) or (self._saved or {}).get(name)

    def _draw_choice(self, state: State) -> None:
        names = [ORIGINAL, *(run.name for run in state.runs if run.name != ORIGINAL)]
        diagnostic = names[1:]
        first, second = state.look.against
        first = first if first in names else ORIGINAL
        second = second if second in names else (diagnostic[-1] if diagnostic else "")
        self._drawing = True
        try:
            for field, options, value in (
                (self._first, names, first),
                (self._second, names if diagnostic else [""], second),
            ):
                if list(field.options) != options:
                    field.options = options
                field.value = value
        finally:
            self._drawing = False
        takes = seconds(None if state.takes is None else 2 * state.takes)
        self._run.description = f"Compare, {takes}" if takes else "Compare"
        self._run.disabled = state.activity is not None or not second or first == second
        self._second.disabled = not diagnostic
        other = self._other()
        parts.show(self._bundles, other is not None)
        if other is not None:
            self._bundles.description = f"Compare bundles: {other.path.name}"[:60]
            self._bundles.disabled = state.activity is not None
        said = "Both run again here, without probes."
        if not diagnostic:
            said = "Only one set of conditions so far: change a switch and replay to have another."
        self._about.value = esc(said)

    def _two_runs(self, state: State, opened: bool) -> str:
        found = self._result(state, "comparison")
        if found is None:
            return ""
        names = state.look.against if all(state.look.against) else (ORIGINAL, "the other")
        data = found.data
        if state.result("comparison") is not None and state.look.against != ("", ""):
            names = state.look.against
        return f"<h4>{esc(names[0])} and {esc(names[1])}</h4>" + text.comparison(
            data, names[0], names[1], opened
        )

    def _two_bundles(self, state: State, opened: bool) -> str:
        found, other = self._result(state, "bundles"), self._other()
        if found is None or other is None:
            return ""
        return f"<h4>This bundle and {esc(other.path.name)}, as recorded</h4>" + text.bundles(
            found.data, opened
        )

    def _sweep(self, state: State) -> str:
        found, smallest = self._result(state, "sweep"), self._result(state, "minimal")
        takes = seconds(None if state.takes is None else _sweep_takes(state.takes))
        run = link("sweep", f"Run, {takes}" if takes else "Run")
        search = link("minimal", f"Find it, {takes}" if takes else "Find it")
        if state.activity is not None:
            run = search = '<span class="wb-dim">running …</span>'
        body = note(f"One change at a time, each a run of its own. {run}")
        if found is not None:
            body = text.sweep(found) + note(f"Again: {run}")
        least = note(f"The smallest set of changes under which the step is finite. {search}")
        if smallest is not None:
            least = text.minimal(smallest)
        return f"<h4>Sweep</h4>{body}<h4>Minimal fixing set</h4>{least}"

    def _ladder(self, state: State) -> str:
        found = self._result(state, "ladder")
        run = link("ladder", "Run, some minutes")
        if state.activity is not None:
            run = '<span class="wb-dim">running …</span>'
        if found is None:
            body = note(f"The step uncompiled and under each backend of torch.compile. {run}")
        else:
            body = text.ladder(found) + note(f"Again: {run}")
        return f"<h4>Backend ladder</h4>{body}"


def _sweep_takes(next_run: float) -> float:
    """Seconds of a sweep, where the next run takes this long, be it with a start before it."""
    start = START_SECONDS if next_run >= START_SECONDS else 0.0
    return start + SWEEP_CELLS * max(next_run - start, LEAST_RUN)
