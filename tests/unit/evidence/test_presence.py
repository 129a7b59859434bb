"""Who is alive: a lock tells, a killed process does not look alive, nor does its forked child."""

from __future__ import annotations

import signal
import subprocess
import sys

from workbench.evidence.presence import MARK, Presence, present

HOLDER = """
import os, sys, time
from pathlib import Path
from workbench.evidence.presence import Presence
held = Presence(Path(sys.argv[1]), sys.argv[2])
held.begin()
if os.fork() == 0:  # as a data loader's worker does
    print("begun", os.getpid(), flush=True)
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


def test_a_run_is_alive_until_it_ends_however_it_ends(tmp_path):
    assert present(tmp_path) is None
    own = Presence(tmp_path, "own")
    own.begin()
    assert (present(tmp_path), present(tmp_path, "own")) == (True, True)
    assert present(tmp_path, "other") is False
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path), "other"], stdout=subprocess.PIPE, text=True
    )
    word, worker = other.stdout.readline().split()
    try:
        assert word == "begun"
        assert present(tmp_path, "other") is True
        own.end()
        assert (present(tmp_path, "own"), present(tmp_path)) == (False, True)
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert (present(tmp_path, "other"), present(tmp_path)) == (False, False)
    finally:
        subprocess.run(["kill", "-9", worker], check=True)
        other.kill()
        other.stdout.close()


def test_two_recorders_of_one_process_hold_apart(tmp_path):
    first, second, same = (Presence(tmp_path, name) for name in ("a", "b", "a"))
    first.begin(), second.begin(), same.begin()
    first.end()
    assert (present(tmp_path, "a"), present(tmp_path, "b")) == (True, True)
    del same  # let go of without being closed
    assert (present(tmp_path, "a"), present(tmp_path, "b")) == (False, True)
    second.end()
    second.end()
    assert present(tmp_path) is False


def test_what_is_no_file_of_a_recorder_tells_nothing(tmp_path):
    (tmp_path / "target").write_text("")
    (tmp_path / MARK).symlink_to(tmp_path / "target")
    assert present(tmp_path) is None
    (tmp_path / MARK).unlink()
    (tmp_path / MARK).mkdir()
    assert present(tmp_path) is None
    assert present(tmp_path / "no such folder") is None
