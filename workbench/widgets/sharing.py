"""What leaves the panel: pinned notes, and the report they go into."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import CannotRunError, UsageError, WorkbenchError
from workbench.evidence.notes import Note, new_note, read_notes, write_notes
from workbench.evidence.wording import counted
from workbench.widgets import actions as a
from workbench.widgets.claims import claims, run_words, view_words
from workbench.widgets.report_process import ReportProcess
from workbench.widgets.state import TABS, Report, State
from workbench.widgets.store import Store
from workbench.widgets.words import report_takes

if TYPE_CHECKING:
    from collections.abc import Callable

    from workbench.widgets.notes import Notes
    from workbench.widgets.report_drawer import ReportDrawer


class Sharing:
    """The part of `Workbench` that pins notes and makes reports."""

    bundle: Any
    notes_drawer: Notes
    report_drawer: ReportDrawer
    _store: Store
    _step: Any
    _watch: Callable[[], None]
    _report: ReportProcess | None = None

    @property
    def notes(self) -> tuple[Note, ...]:
        """What was pinned, oldest first."""
        return self._store.state.notes

    def pin(self, sentence: str = "", claim: str = "") -> Note:
        """Pin the view on screen, or a claim, with a sentence; it goes into the report.

        Args:
            sentence: What to say about it.
            claim: A claim of the panel, word for word (``claims()`` lists them); the view alone
                when empty.

        Returns:
            The note, kept in ``<bundle>.findings/notes.json`` where that can be written.
        """
        state = self._store.state
        note = new_note(
            view=view_words(state), claim=claim, sentence=sentence, run=run_words(state)
        )
        self._keep(lambda notes: (*notes, note))
        return note

    def claims(self) -> tuple[str, ...]:
        """Everything on screen that can be pinned besides the view itself."""
        return claims(self._store.state)

    def remove_note(self, number: int) -> None:
        """Take a note away.

        Args:
            number: Its place in ``notes``.

        Raises:
            UsageError: There is no such note.
        """
        gone = self._note(number).id
        self._keep(lambda notes: tuple(note for note in notes if note.id != gone))

    def show_note(self, number: int) -> None:
        """Go back to the tab and the run of a note."""
        note = self._note(number)
        tab, run = note.view.partition(" · ")[0].lower(), note.run.partition(":")[0]
        if self._store.state.run(run) is not None:
            self._store.dispatch(a.RunShown(run))
        if tab in TABS:
            self._store.dispatch(a.Looked((("tab", tab),)))

    def make_report(self, output: str | os.PathLike[str] = "") -> None:
        """Write the report as one HTML file, in a process of its own.

        It replays and diagnoses when code was allowed to run here; otherwise it shows what was
        recorded, and the findings saved beside the bundle. ``wait()`` waits for it.

        Args:
            output: The file; one beside the notebook, named after the bundle, when empty.

        Raises:
            UsageError: One is being made.
        """
        if self._report is not None:
            raise UsageError(
                "A report is being made, so no other was started. Wait for it, or press Stop."
            )
        path = Path(output or report_path(self.bundle)).expanduser().absolute()
        expected = report_takes(self._store.state)
        self._report = ReportProcess(Path(self.bundle.path), path, self._code_options())
        started = Report("running", str(path), "", time.monotonic(), expected)
        self._store.dispatch(a.ReportChanged(started))
        self._watch()

    def stop_report(self) -> None:
        """End the making of the report; nothing is written then."""
        if self._report is None:
            return
        self._report.stop()
        self._report = None
        self._reported("stopped", "Stopped by you. No report was written.")

    # -- inside -------------------------------------------------------------------------------

    def pin_drawn(self) -> None:
        """Pin what the drawer says."""
        drawer = self.notes_drawer
        self.pin(drawer.sentence, drawer.chosen)
        drawer.clear()

    def _pump_report(self) -> None:
        """Look at the report's process."""
        making = self._report
        if making is None:
            return
        if making.code is None:
            self.report_drawer.tick(self._store.state, making.doing)
            return
        self._report = None
        if making.code == 0 and making.output.is_file():
            spent = time.monotonic() - making.began
            self._reported("done", "", spent)
        else:
            why = making.said() or "It said nothing about why."
            self._reported("failed", f"No report was written (exit code {making.code}). {why}")

    def _reported(self, status: str, text: str, took: float | None = None) -> None:
        report = self._store.state.report
        after = Report(status, report.path, text, report.started, report.expected, took)
        self._store.dispatch(a.ReportChanged(after))

    def _code_options(self) -> tuple[str, ...]:
        """How the report finds the code: only code that was allowed to run here."""
        trust = self._store.state.trust
        if trust.given == "source":
            return ("--trust", "source")
        if not trust.given:
            return ()
        if self._step is None:
            reference = trust.reference or self._store.state.facts.step_reference
            return ("--step", reference) if reference else ()
        from workbench.replay.worker import reference_of

        return ("--step", str(reference_of(self._step)))

    def _note(self, number: int) -> Note:
        notes = self._store.state.notes
        if not 0 <= number < len(notes):
            raise UsageError(
                f"There is no note {number}, so nothing was done. The panel has "
                f"{counted(len(notes), 'note')}."
            )
        return notes[number]

    def _keep(self, change: Callable[[tuple[Note, ...]], tuple[Note, ...]]) -> None:
        """Change the notes on disk, where others may have pinned meanwhile, and those shown."""
        mine = self._store.state.notes
        try:
            there = read_notes(self.bundle)
        except WorkbenchError as error:
            self._store.dispatch(a.NotesChanged(change(mine), str(error)))
            return
        known = {note.id for note in mine}
        notes = change((*mine, *(note for note in there if note.id not in known)))
        said = ""
        try:
            write_notes(self.bundle, notes)
        except CannotRunError as error:
            said = f"Kept in memory only. {error}"
        self._store.dispatch(a.NotesChanged(notes, said))


def with_notes(bundle: Any, state: State) -> State:
    """The state with the notes beside the bundle, and with where a report would go."""
    from dataclasses import replace

    state = replace(state, report=Report(path=report_path(bundle)))
    try:
        return replace(state, notes=read_notes(bundle))
    except WorkbenchError as error:
        return replace(state, notes_said=str(error))


def report_path(bundle: Any) -> str:
    """Where a report goes when nothing else is said: beside the notebook."""
    stem = Path(bundle.path).name.removesuffix(".zip").removesuffix(".bundle")
    return f"report-{stem}.html"
