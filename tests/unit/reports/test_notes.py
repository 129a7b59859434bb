from tests.unit.charts.fabricated import HOSTILE, write_bundle
from tests.unit.reports.fabricated import incident, notebook
from workbench.evidence import open_bundle
from workbench.evidence.notes import new_note, write_notes
from workbench.reports import sections
from workbench.reports.page import write_page


def test_notes_beside_a_bundle_stand_on_the_page(tmp_path):
    path = write_bundle(tmp_path, layers=4)
    note = new_note(
        view="Ranges, loss", claim="1 NaN", sentence="Ask **data** about `y`.", run="Original"
    )
    write_notes(open_bundle(path), [note])
    made = sections.load_incident(path)
    html = write_page(notebook(made))
    assert "Ask <strong>data</strong> about <code>y</code>." in html
    assert "Ranges, loss · Original" in html
    assert "The panel said there: 1 NaN" in html
    assert "One, pinned in the workbench." in html


def test_hostile_notes_are_text():
    note = new_note(view=HOSTILE, claim=HOSTILE, sentence=f"{HOSTILE}\n[x](javascript:alert(1))")
    html = write_page(notebook(incident(notes=(note,))))
    assert HOSTILE not in html
    assert 'href="javascript' not in html


def test_damaged_notes_are_said_and_take_nothing_along(tmp_path):
    path = write_bundle(tmp_path, layers=4)
    beside = open_bundle(path).findings_dir
    beside.mkdir(exist_ok=True)
    (beside / "notes.json").write_text("{")
    made = sections.load_incident(path)
    assert made.notes == ()
    (said,) = sections.notes(made).blocks
    assert "notes.json" in said["text"]
    assert str(tmp_path) not in said["text"]


def test_without_notes_the_first_screen_has_no_row_for_them():
    (facts,) = [b for b in sections.first_screen(incident()).blocks if b["type"] == "facts"]
    assert "Notes" not in [name for name, _, _ in facts["rows"]]
