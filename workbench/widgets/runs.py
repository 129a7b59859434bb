"""The runs row: what was recorded, Original, and every diagnostic run. Choosing one shows it."""

from __future__ import annotations

import ipywidgets as w

from workbench.widgets import parts
from workbench.widgets.actions import RunShown
from workbench.widgets.parts import Act
from workbench.widgets.state import RECORDED, Run, State
from workbench.widgets.store import Store
from workbench.widgets.words import changed_words, run_result


class Runs:
    """Region: one toggle a run."""

    name = "runs"

    def __init__(self, store: Store, act: Act) -> None:
        del act
        self._store = store
        self._toggles = w.ToggleButtons(options=[(RECORDED, RECORDED)], value=RECORDED)
        self._toggles.add_class("wb-run-toggles")
        self._toggles.observe(store.guard.wrap(self.name, self._chosen), names="value")
        self._problem = parts.html()
        label = parts.html("<b>Runs</b>", "wb-whose")
        self.widget = parts.row([label, self._toggles, self._problem], "wb-runs")
        self._drawing = False

    def _chosen(self) -> None:
        if not self._drawing and self._toggles.value is not None:
            self._store.dispatch(RunShown(self._toggles.value))

    def part(self, state: State) -> object:
        """All runs and which one is shown."""
        return (state.runs, state.look.shown, state.problem(self.name))

    def draw(self, state: State) -> None:
        """One labelled toggle a run, with its result in words."""
        recorded = f"▤ {RECORDED}"
        options = [(recorded, RECORDED), *((run_label(run), run.name) for run in state.runs)]
        tips = ["What was recorded, nothing replayed", *(run_tip(run) for run in state.runs)]
        self._drawing = True
        try:
            if list(self._toggles.options) != options:
                self._toggles.options = options
                self._toggles.tooltips = tips
            self._toggles.value = state.look.shown
        finally:
            self._drawing = False
        self._problem.value = parts.problem(state.problem(self.name))


def run_label(run: Run) -> str:
    """Glyph, name, what was changed and what came out."""
    if run.diagnostic:
        return f"◇ {run.name}  {changed_words(run.changed)}: {run_result(run)}"
    return f"● {run.name}: {run_result(run)}"


def run_tip(run: Run) -> str:
    """The conditions of a run in one line."""
    return changed_words(run.changed) or "The recorded conditions"
