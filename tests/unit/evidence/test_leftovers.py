"""What a killed writer leaves is removed, and nothing that somebody may still be writing."""

import signal
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from workbench import Recorder
from workbench.evidence.leftovers import remove_leftovers
from workbench.evidence.reader import find_bundles
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
    return [path for path in Path(directory).iterdir() if path.name.startswith(".")]


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


def test_a_folder_that_is_made_this_moment_is_left_alone(tmp_path):
    name = BundleWriter(tmp_path / "a", "x").path.name
    fresh = tmp_path / name
    fresh.mkdir()
    assert remove_leftovers(tmp_path) == []
    (fresh / "part").write_text("x")
    assert remove_leftovers(tmp_path) == [fresh]
