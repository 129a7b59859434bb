import time

import pytest

from tests.unit.widgets.conftest import make_bundle
from workbench.errors import UsageError
from workbench.evidence import open_bundle
from workbench.evidence.notes import new_note, read_notes, write_notes
from workbench.widgets import Workbench


def test_a_view_is_pinned_with_a_sentence_and_kept_beside_the_bundle(panel, bundle):
    panel.run_to_first_bad()
    panel.wait()
    panel.show("ranges", tensors="activations")
    note = panel.pin("show this to Ana")
    assert note.view.startswith("Ranges · activations")
    assert (note.claim, note.sentence, note.run) == ("", "show this to Ana", "Original")
    assert read_notes(bundle) == (note,) == panel.notes
    assert panel.state.notes_said == ""


def test_the_drawer_pins_a_claim_word_for_word(panel, bundle):
    panel._commands.act("pin_view")
    assert "notes" in panel.state.look.open
    drawer = panel.notes_drawer
    claim = next(one for one in panel.claims() if one.startswith("Reach"))
    drawer._claim.value = claim
    drawer._sentence.value = "  tell the team "
    drawer._pin.click()
    (note,) = read_notes(bundle)
    assert (note.claim, note.sentence) == (claim, "tell the team")
    assert (drawer.sentence, drawer.chosen) == ("", "")
    assert drawer.button.description == "Notes (1) ▾"
    assert "tell the team" in drawer._list.value


def test_what_is_pinned_is_escaped(panel):
    panel.pin("<img src=x onerror=alert(1)>")
    panel._commands.act("notes")
    assert "<img" not in panel.notes_drawer._list.value
    assert "&lt;img" in panel.notes_drawer._list.value


def test_notes_come_back_with_the_bundle_and_those_of_another_panel_are_kept(panel, bundle):
    mine = panel.pin("mine")
    other = Workbench(open_bundle(bundle.path))
    assert other.notes == (mine,)
    theirs = other.pin("theirs")
    again = panel.pin("again")
    assert {note.id for note in read_notes(bundle)} == {mine.id, theirs.id, again.id}
    other.close()


def test_a_note_is_removed_and_shown_again(panel, bundle):
    panel.run_to_first_bad()
    panel.wait()
    panel.show("evidence", section="files")
    panel.pin("a")
    panel.pin("b")
    panel.show("timeline", run="Recorded")
    panel._commands.act("note_show:0")
    assert (panel.state.look.tab, panel.state.look.shown) == ("evidence", "Original")
    panel._commands.act("note_remove:0")
    assert [note.sentence for note in read_notes(bundle)] == ["b"]
    with pytest.raises(UsageError, match="no note 5"):
        panel.remove_note(5)


def test_notes_that_cannot_be_saved_are_kept_in_memory_and_it_is_said(panel, bundle):
    bundle.findings_dir.write_text("in the way")
    panel.pin("kept")
    assert [note.sentence for note in panel.notes] == ["kept"]
    assert panel.state.notes_said.startswith("Kept in memory only.")
    panel._commands.act("notes")
    assert "Kept in memory only." in panel.notes_drawer._list.value


def test_damaged_notes_are_said_and_not_overwritten(tmp_path):
    bundle = open_bundle(make_bundle(tmp_path))
    write_notes(bundle, [new_note(view="a")])
    path = bundle.findings_dir / "notes.json"
    path.write_text("damaged")
    panel = Workbench(bundle)
    assert "notes.json" in panel.state.notes_said
    panel.pin("new")
    assert path.read_text() == "damaged"
    assert [note.sentence for note in panel.notes] == ["new"]
    panel.close()


def test_claims_are_the_sentences_on_screen(panel):
    panel.diagnose()
    panel.wait()
    said = panel.claims()
    assert said[0].startswith("The loss became NaN")
    assert any(one.startswith("Born at aten.log.default") for one in said)
    assert len(set(said)) == len(said)


class Slow:
    """A report that is being made until it is told to end."""

    def __init__(self, code=None, doing="load"):
        self.code, self.doing, self.began = code, doing, time.monotonic()
        self.stopped = False

    def stop(self):
        self.stopped = True


def test_a_report_says_beforehand_what_it_holds_and_how_long_it_takes(bundle):
    panel = Workbench(bundle)
    panel._commands.act("report")
    drawer = panel.report_drawer
    assert "recorded evidence only" in drawer._what.value
    assert drawer._make.description == "Make report, about 15 s"
    assert drawer.path == "report-run7-step00018342.html"
    panel.pin("one")
    assert "1 pinned note" in drawer._what.value
    panel.close()


def test_a_report_is_stopped(panel):
    slow = panel._report = Slow()
    panel._pump_report()
    panel._commands.act("stop_report")
    assert slow.stopped and panel._report is None
    assert panel.state.report.status == "stopped"


def test_only_code_that_was_allowed_goes_into_a_report(bundle):
    panel = Workbench(bundle)
    assert panel._code_options() == ()
    panel.allow("own", "mine.py:Step")
    assert panel._code_options() == ("--step", "mine.py:Step")
    panel.allow("source")
    assert panel._code_options() == ("--trust", "source")
    panel.close()
