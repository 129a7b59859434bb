"""The runs row: what was recorded, Original, and every diagnostic run. Choosing one shows it."""

from __future__ import annotations

import ipywidgets as w

from workbench.widgets import parts
from workbench.widgets.actions import Looked, RunShown
from workbench.widgets.parts import Act
from workbench.widgets.state import ORIGINAL, RECORDED, Run, State
from workbench.widgets.store import Store
from workbench.widgets.words import changed_words, run_result, seconds

TIP = "What was recorded, nothing replayed"


class Runs:
    """Region: one toggle a run."""

    name = "runs"

    def __init__(self, store: Store, act: Act) -> None:
        self._store, self._act = store, act
        self._toggles = w.ToggleButtons(
            options=[(f"▤ {RECORDED}", RECORDED)],
            tooltips=[TIP],
            value=RECORDED,
            _dom_classes=("wb-run-toggles",),
        )
        self._toggles.observe(store.guard.wrap(self.name, self._chosen), names="value")
        self._problem = parts.html()
        self._compare = parts.button(
            "Compare", store.guard.wrap(self.name, self._ask), classes=("wb-compare-button",)
        )
        label = parts.html("<b>Runs</b>", "wb-whose")
        self.widget = parts.row([label, self._toggles, self._problem, self._compare], "wb-runs")
        self._drawing = False

    def _chosen(self) -> None:
        if not self._drawing and self._toggles.value is not None:
            self._store.dispatch(RunShown(self._toggles.value))

    def _ask(self) -> None:
        """Compare Original with the diagnostic run that is shown, or with the last one."""
        other = to_compare(self._store.state)
        if other:
            self._store.dispatch(Looked((("against", (ORIGINAL, other)),)))
            self._act("compare")

    def part(self, state: State) -> object:
        """All runs and which one is shown."""
        busy = state.activity is not None
        return (state.runs, state.look.shown, state.problem(self.name), state.takes, busy)

    def draw(self, state: State) -> None:
        """One labelled toggle a run, with its result in words."""
        recorded = f"▤ {RECORDED}"
        options = [(recorded, RECORDED), *((run_label(run), run.name) for run in state.runs)]
        tips = [TIP, *(run_tip(run) for run in state.runs)]
        self._drawing = True
        try:
            if list(self._toggles.options) != options:
                self._toggles.options = options
                self._toggles.tooltips = tips
            self._toggles.value = state.look.shown
        finally:
            self._drawing = False
        self._problem.value = parts.problem(state.problem(self.name))
        other = to_compare(state)
        parts.show(self._compare, bool(other))
        takes = seconds(None if state.takes is None else 2 * state.takes)
        said = f"Compare {ORIGINAL} · {other}"
        self._compare.description = f"{said}, {takes}" if takes else said
        self._compare.disabled = state.activity is not None


def to_compare(state: State) -> str:
    """The diagnostic run to compare with Original: the shown one, else the last; or none."""
    if state.run(ORIGINAL) is None:
        return ""
    names = [run.name for run in state.runs if run.diagnostic]
    return state.look.shown if state.look.shown in names else (names or [""])[-1]


def run_label(run: Run) -> str:
    """Glyph, name, what was changed and what came out."""
    if run.diagnostic:
        return f"◇ {run.name}  {changed_words(run.changed)}: {run_result(run)}"
    return f"● {run.name}: {run_result(run)}"


def run_tip(run: Run) -> str:
    """The conditions of a run in one line."""
    return changed_words(run.changed) or "The recorded conditions"
