"""Training waits for no other process: whoever holds a lock on the run's files may be stopped."""

import subprocess
import sys
from contextlib import contextmanager

import recorded_steps as steps
import torch
from recorder_helpers import ledger, make

from workbench import Policy
from workbench.checkpoints import Registry

HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
try:
    sys.stdin.read()
finally:
    print("given back", flush=True)
"""


@contextmanager
def held(path):
    """Another process that holds a lock; it gives it back by itself, should training wait."""
    command = ["timeout", "40", sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        yield holder
        assert holder.poll() is None, "training waited until the lock was given back"
        holder.stdin.close()
        holder.wait()


def test_a_held_ledger_grows_and_begins_anew_later(tmp_path):
    step, recorder = make(steps.Half, tmp_path, Policy(ledger_bytes=8000))
    recorder.train_step(step.batch(0))
    with held(tmp_path / "r.ledger.jsonl"):
        for k in range(1, 12):
            recorder.train_step(step.batch(k))
        assert [r["step"] for r in ledger(tmp_path)] == list(range(12))
        assert len(recorder.failures) == 1
        assert "another process holds a lock on it" in recorder.failures[0]
        assert "8,000 bytes" in recorder.failures[0]
    recorder.train_step(step.batch(12))
    assert [r["step"] for r in ledger(tmp_path)] == [12]
    assert (tmp_path / "r.ledger.1.jsonl").read_text().count("\n") == 12
    assert len(recorder.failures) == 1


def test_an_incident_is_told_of_once_the_states_are_free(tmp_path):
    saved = tmp_path / "checkpoints"
    saved.mkdir()
    policy = Policy(on_nonfinite="skip")
    step, recorder = make(steps.Cnn, tmp_path, policy, checkpoints=saved)
    recorder.checkpoints.registry.clean_steps = 1
    recorder.checkpoints.registry.patience = 0.2
    recorder.train_step(step.batch(0))
    path = saved / "checkpoint-0.pt"
    torch.save({"model": recorder.model.state_dict()}, path)
    recorder.checkpoint_saved(path)
    recorder.train_step(step.batch(1))
    recorder.train_step(step.batch(2))
    recorder.checkpoints.wait()
    assert [one.state for one in Registry(saved).known()] == ["committed"]
    recorder.checkpoints.proven_clean = -1  # nothing after the checkpoint was seen in full
    with held(saved / ".workbench-checkpoints.lock"):
        recorder.train_step(step.batch(3, bad=True))
        assert "Another process has held the lock" in recorder.failures[0]
    assert [one.state for one in Registry(saved).known()] == ["committed"]
    for k in range(3):
        recorder.train_step(step.batch(k))
    recorder.close()
    history = Registry(saved).known()[0].entry.history
    assert any("in step 3" in change["why"] for change in history)
