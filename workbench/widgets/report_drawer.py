"""The report drawer: where the file goes, what it will hold, how long it takes, and the link."""

from __future__ import annotations

import time

import ipywidgets as w

from workbench.evidence.wording import counted
from workbench.widgets import parts
from workbench.widgets.markup import esc, link
from workbench.widgets.parts import Act
from workbench.widgets.state import State
from workbench.widgets.store import Store
from workbench.widgets.words import report_takes, seconds


class ReportDrawer:
    """Region: make a report as one HTML file, in a process of its own; closed at first.

    Args:
        store: The panel's state.
        act: Asks the panel to do something by one action name.
    """

    name = "report"

    def __init__(self, store: Store, act: Act) -> None:
        self._store, self._act = store, act
        self.widget = parts.column([], "wb-report")

    def _fill(self) -> None:
        """Make the fields, once, when they are first needed."""
        if self.widget.children:
            return
        act, wrap = self._act, self._store.guard.wrap
        self._what = parts.html()
        self._path = w.Text(
            value=self._store.state.report.path,
            continuous_update=False,
            layout=w.Layout(width="420px"),
        )
        self._path.tooltip = "Where the file goes: a path here, or the name alone"
        self._make = parts.button(
            "Make report", wrap(self.name, lambda: act("make_report")), classes=("wb-primary",)
        )
        self._stop = parts.button("■ Stop", wrap(self.name, lambda: act("stop_report")))
        self._said = parts.html("", "wb-report-said")
        label = parts.html("One HTML file", "wb-report-label")
        row = parts.row([label, self._path, self._make, self._stop], "wb-report-row")
        self.widget.children = (self._what, row, self._said)

    @property
    def path(self) -> str:
        """Where the file is to go."""
        self._fill()
        return str(self._path.value).strip()

    def part(self, state: State) -> object:
        """The report, and what it would hold."""
        opened = "report" in state.look.open
        facts = (len(state.notes), report_takes(state), id(state.findings))
        return (opened, state.report, facts, state.problem(self.name))

    def draw(self, state: State) -> None:
        """Show the drawer, if it is open."""
        opened = "report" in state.look.open
        parts.show(self.widget, opened)
        if not opened:
            return
        self._fill()
        report = state.report
        running = report.status == "running"
        self._what.value = esc(holds(state))
        takes = seconds(report_takes(state))
        self._make.description = f"Make report, {takes}" if takes else "Make report"
        self._make.disabled = self._path.disabled = running
        self._stop.disabled = not running
        if report.status == "done":
            name = report.path.rpartition("/")[2]
            said = (
                f'Written: <a role="button" tabindex="0" data-wb-file="{esc(name)}">Open the '
                f"report</a> · <code>{esc(report.path)}</code> {link('copy_report', 'Copy path')}"
            )
        else:
            said = esc(report.text)
        self._said.value = said + parts.problem(state.problem(self.name))

    def tick(self, state: State, doing: str) -> None:
        """Show how far it is; called while it runs."""
        self._fill()
        report = state.report
        spent = max(time.monotonic() - report.started, 0.0)
        expected = f" of {seconds(report.expected)}" if report.expected else ""
        self._said.value = esc(f"{doing or 'starting'} … {spent:.0f} s{expected}")


def holds(state: State) -> str:
    """What the report will hold, in one sentence."""
    if state.trust.given:
        what = "It replays and diagnoses the step with the code you allowed"
    elif state.findings is not None:
        what = "It shows the recorded evidence and the findings saved beside the bundle"
    else:
        what = "It shows recorded evidence only, since no code was allowed to run"
    many = len(state.notes)
    notes = f", and {counted(many, 'pinned note')}" if many else ""
    return f"{what}{notes}. It opens offline and holds no sample values."
