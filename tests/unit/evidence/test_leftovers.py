"""What a killed writer leaves is removed, and nothing that somebody may still be writing."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from workbench import Recorder
from workbench.errors import BundleError
from workbench.evidence import leftovers
from workbench.evidence.leftovers import hidden_name, remove_leftovers
from workbench.evidence.paths import find_bundles
from workbench.evidence.presence import MARK
from workbench.evidence.writer import BundleWriter

WRITER = """
import sys
from workbench.evidence.writer import BundleWriter
writer = BundleWriter(sys.argv[1], "run-step00000001")
writer.add_text("source/a.py", "x = 1")
print("begun", flush=True)
sys.stdin.read()
"""


def hidden(directory):
    return [p for p in Path(directory).iterdir() if p.name.startswith(".") and p.name != MARK]


def test_leftovers_of_a_killed_run_go_with_the_next_one_and_live_ones_stay(tmp_path):
    live = BundleWriter(tmp_path, "live")
    live.add_text("source/a.py", "x = 1")
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert writer.stdout.readline().strip() == "begun"
    assert len(hidden(tmp_path)) == 2
    assert remove_leftovers(tmp_path) == []  # both are held, one by another process
    assert find_bundles(tmp_path) == []
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    foreign = tmp_path / ".other.bundle.00000000-0a0b0c0d"  # of another machine
    foreign.mkdir()
    (foreign / "a").write_text("x")
    plain = tmp_path / ".mine.bundle.notes"
    plain.mkdir()
    model = nn.Linear(1, 1)
    Recorder(None, model, torch.optim.SGD(model.parameters(), 0.1), directory=tmp_path)
    assert set(hidden(tmp_path)) == {live.path, foreign, plain}
    path = live.seal()
    assert find_bundles(tmp_path) == [path]
    assert sorted(file.name for file in path.iterdir()) == ["manifest.json", "source"]


def test_what_no_writer_marked_is_left_alone(tmp_path):
    own = tmp_path / hidden_name("notes")  # somebody's own folder that has such a name
    own.mkdir()
    assert remove_leftovers(tmp_path) == []
    (own / "thesis.tex").write_text("x")
    live = BundleWriter(tmp_path, "x")
    marker = live.path / leftovers.MARKER
    shutil.copy(marker, own / marker.name)  # the mark of another folder
    assert remove_leftovers(tmp_path) == []
    live._unlock()  # as when its process is killed
    assert remove_leftovers(tmp_path) == [live.path]
    assert (own / "thesis.tex").exists()


def test_machines_of_one_name_leave_each_others_folders_alone(tmp_path, monkeypatch):
    identity = tmp_path / "boot_id"
    incidents = tmp_path / "incidents"
    monkeypatch.setattr(leftovers, "_MACHINE", (identity,))
    identity.write_text("11111111-aaaa\n")
    leftovers._machine.cache_clear()
    try:
        other = BundleWriter(incidents, "x")
        other._unlock()  # a lock that does not show here
        identity.write_text("22222222-bbbb\n")
        leftovers._machine.cache_clear()
        assert remove_leftovers(incidents) == []
        identity.write_text("11111111-aaaa\n")
        leftovers._machine.cache_clear()
        assert remove_leftovers(incidents) == [other.path]
    finally:
        leftovers._machine.cache_clear()


def test_a_writer_whose_folder_a_cleaner_holds_tries_again(tmp_path, monkeypatch):
    real, seen = leftovers.hold, []

    def disturbed(folder, patience=0.0):
        """Another cleaner holds the folder, or removes it, the moment it is made."""
        seen.append(folder)
        if len(seen) == 1:
            folder.rmdir()
            return real(folder, patience)
        cleaner = real(folder)
        assert real(folder) is None
        leftovers.let_go(cleaner)
        return real(folder, patience)

    monkeypatch.setattr(leftovers, "hold", disturbed)
    writer = BundleWriter(tmp_path, "x")
    monkeypatch.setattr(leftovers, "hold", real)
    assert len(seen) == 2
    assert writer._lock is not None
    writer.add_text("a.txt", "evidence")
    assert remove_leftovers(tmp_path) == []
    assert [writer.seal()] == find_bundles(tmp_path)


def test_a_writer_without_a_lock_is_never_taken_for_a_leftover(tmp_path, monkeypatch):
    real = leftovers.hold
    monkeypatch.setattr(leftovers, "hold", lambda folder, patience=0.0: None)
    writer = BundleWriter(tmp_path, "x")
    monkeypatch.setattr(leftovers, "hold", real)
    assert hidden(tmp_path) == [writer.path]
    writer.add_text("a.txt", "evidence")
    assert remove_leftovers(tmp_path) == []
    assert [writer.seal()] == find_bundles(tmp_path)


def test_evidence_that_was_removed_meanwhile_is_not_published(tmp_path):
    whole = BundleWriter(tmp_path, "a")
    whole.add_text("a.txt", "evidence")
    shutil.rmtree(whole.path)
    with pytest.raises(BundleError, match="was removed or changed"):
        whole.add_text("b.txt", "x")
    with pytest.raises(BundleError, match="was removed or changed"):
        whole.seal()
    assert not whole.path.exists()
    part = BundleWriter(tmp_path, "b")
    part.add_text("c/a.txt", "evidence")
    (part.path / "c" / "a.txt").unlink()
    with pytest.raises(BundleError, match=r"a\.txt' was removed"):
        part.seal()
    part.abort()
    late = BundleWriter(tmp_path, "c")
    late.add_text("a.txt", "evidence")
    path = late.publish()
    (path / "a.txt").write_text("short")
    with pytest.raises(BundleError, match=r"a\.txt' was removed or changed"):
        late.seal()
    assert find_bundles(tmp_path) == [path]
    assert '"sealed": false' in (path / "manifest.json").read_text()
