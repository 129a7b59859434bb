import json

import pytest

from workbench.errors import BundleError, CannotRunError
from workbench.evidence import BundleWriter, open_bundle, pack
from workbench.evidence.notes import MAX_BYTES, Note, new_note, read_notes, write_notes


@pytest.fixture
def bundle(tmp_path):
    writer = BundleWriter(tmp_path, "run-step00000003")
    writer.add_text("source/train.py", "x = 1\n")
    writer.update(run_id="run", step=3)
    writer.publish()
    return open_bundle(writer.seal())


def file_of(bundle):
    return bundle.findings_dir / "notes.json"


def put(bundle, content):
    bundle.findings_dir.mkdir()
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    file_of(bundle).write_bytes(data)


def row(**changes):
    made = {"id": "a1", "time": "2026-11-12T07:52:00Z", "view": "Ranges"}
    return {**made, "claim": "c", "sentence": "s", "run": "Original", **changes}


def test_a_bundle_without_notes_has_none(bundle):
    assert read_notes(bundle) == ()


def test_notes_come_back_as_they_were_written(bundle):
    first = new_note(view="Origin", claim="Born at aten.log", sentence="tell Ana", run="Original")
    second = new_note(view="Ranges", sentence="<script>\u202e NaN −Inf")
    path = write_notes(bundle, [first, second])
    assert path == file_of(bundle)
    assert read_notes(bundle) == (first, second)
    assert first.id != second.id
    assert first.time.endswith("Z")


def test_the_file_is_the_contract_of_the_reports(bundle):
    write_notes(bundle, [Note(**row())])
    assert json.loads(file_of(bundle).read_text()) == {
        "schema": "workbench.notes/1",
        "notes": [row()],
    }


def test_writing_replaces_and_leaves_nothing_else_behind(bundle):
    write_notes(bundle, [new_note(view="a")])
    write_notes(bundle, [])
    assert read_notes(bundle) == ()
    assert [one.name for one in bundle.findings_dir.iterdir()] == ["notes.json"]


def test_the_sealed_bundle_is_not_touched(bundle):
    before = bundle.digest
    write_notes(bundle, [new_note(view="a")])
    assert open_bundle(bundle.path).digest == before
    assert [one.status for one in bundle.verify()] == ["ok"]


def test_notes_travel_with_a_packed_bundle(bundle, tmp_path):
    note = new_note(view="Origin", sentence="packed")
    write_notes(bundle, [note])
    away = tmp_path / "away"
    away.mkdir()
    packed = open_bundle(pack(bundle, away / "x.bundle.zip"))
    assert read_notes(packed) == (note,)
    write_notes(packed, [])
    assert read_notes(packed) == (), "what was written beside it comes first"


@pytest.mark.parametrize(
    "content",
    [
        b"not json",
        b'{"schema": "workbench.notes/1", "notes": [], "notes": []}',
        [],
        {"schema": "workbench.notes/2", "notes": []},
        {"schema": "workbench.notes/1", "notes": {}},
        {"schema": "workbench.notes/1", "notes": [{"id": "a1"}]},
        {"schema": "workbench.notes/1", "notes": [row(sentence=3)]},
        {"schema": "workbench.notes/1", "notes": [row()] * 1001},
    ],
)
def test_a_damaged_file_is_refused(bundle, content):
    put(bundle, content)
    with pytest.raises(BundleError):
        read_notes(bundle)


def test_a_huge_file_is_not_read_whole(bundle):
    put(bundle, b" " * (MAX_BYTES + 1))
    with pytest.raises(BundleError, match="larger than"):
        read_notes(bundle)


def test_overlong_texts_are_cut(bundle):
    write_notes(bundle, [new_note(view="v", sentence="x" * 5000)])
    assert len(read_notes(bundle)[0].sentence) == 2000


def test_a_place_that_cannot_be_written_is_said(bundle):
    bundle.findings_dir.write_text("a file stands where the directory would be")
    with pytest.raises(CannotRunError, match="lost when this process ends"):
        write_notes(bundle, [new_note(view="a")])
    assert read_notes(bundle) == ()
