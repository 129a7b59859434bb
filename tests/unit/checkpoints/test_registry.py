"""States of checkpoints: who may be resumed from, and what changes that."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import shutil
import subprocess
import sys

import pytest
import torch

from workbench.checkpoints import Registry
from workbench.checkpoints.layout import STATES_FILE, find_checkpoints
from workbench.checkpoints.ledgers import clean_steps_of
from workbench.checkpoints.states import read_states
from workbench.errors import CannotRunError, CheckpointError, UsageError


@pytest.fixture
def run(tmp_path):
    for step in (10, 20, 30):
        torch.save({"w": torch.full((4,), float(step))}, tmp_path / f"checkpoint-{step}.pt")
    return tmp_path


def states(directory):
    return {one.checkpoint.step: one.state for one in Registry(directory).known()}


def test_a_checkpoint_is_committed_by_a_scan_and_clean_steps(run):
    registry = Registry(run, clean_steps=5)
    assert states(run) == {10: "suspect", 20: "suspect", 30: "suspect"}
    registry.scan()
    assert registry.latest() is None
    registry.clean(24)
    assert states(run) == {10: "committed", 20: "suspect", 30: "suspect"}
    registry.clean(25)
    assert registry.latest().name == "checkpoint-20.pt"
    registry.clean(11)  # what is known is not forgotten
    assert read_states(run).clean_through == 25


def test_clean_steps_without_a_scan_commit_nothing(run):
    Registry(run, 1).clean(1000)
    assert Registry(run).latest() is None
    Registry(run, 1).scan()
    assert Registry(run).latest().name == "checkpoint-30.pt"


def test_a_nonfinite_checkpoint_is_quarantined_and_cannot_be_released(run):
    torch.save({"w": torch.tensor([1.0, math.nan])}, run / "checkpoint-30.pt")
    registry = Registry(run, clean_steps=0)
    registry.clean(1000)
    registry.scan()
    assert states(run)[30] == "quarantined"
    assert registry.latest().name == "checkpoint-20.pt"
    with pytest.raises(CannotRunError, match="must not be trained on"):
        registry.release("checkpoint-30.pt", "me", "it looks fine")
    with pytest.raises(CannotRunError, match="quarantined"):
        registry.refuse_unless_committed(run / "checkpoint-30.pt")


def test_a_checkpoint_written_again_is_suspect_again(run):
    registry = Registry(run, clean_steps=0)
    registry.clean(1000)
    registry.scan()
    torch.save({"w": torch.tensor([math.inf] * 9)}, run / "checkpoint-30.pt")
    assert states(run)[30] == "suspect"
    assert registry.latest().name == "checkpoint-20.pt"
    registry.scan()
    assert states(run)[30] == "quarantined"


def test_an_incident_makes_what_is_newer_suspect(run):
    registry = Registry(run, clean_steps=5)
    registry.scan()
    registry.clean(100)
    assert set(states(run).values()) == {"committed"}
    changed = registry.incident(101, proven_clean=15, why="incident NF-1")
    assert changed == ["checkpoint-20.pt", "checkpoint-30.pt"]
    assert registry.latest().name == "checkpoint-10.pt"
    registry.clean(104)
    assert registry.latest().name == "checkpoint-10.pt"
    registry.clean(106)  # five clean steps after the incident
    assert registry.latest().name == "checkpoint-30.pt"


def test_a_diagnosis_quarantines_suspects_and_a_person_may_release_them(run):
    registry = Registry(run, clean_steps=5)
    registry.scan()
    assert registry.diagnosed(20, "the anomaly persists in float32") == [
        "checkpoint-20.pt", "checkpoint-30.pt",
    ]  # fmt: skip
    registry.clean(1000)
    assert states(run) == {10: "committed", 20: "quarantined", 30: "quarantined"}
    with pytest.raises(UsageError, match="--by"):
        registry.release("checkpoint-20.pt", " ", "checked")
    registry.release("checkpoint-20.pt", "Ada", "checked by hand")
    assert registry.latest().name == "checkpoint-20.pt"
    history = read_states(run).entries["checkpoint-20.pt"].history
    assert (history[-1]["who"], history[-1]["why"]) == ("Ada", "checked by hand")
    assert history[-1]["from"] == "quarantined"


def test_moving_hides_a_checkpoint_from_every_loader(run):
    with pytest.raises(UsageError, match=r"no checkpoint '\.\./checkpoint-30\.pt'"):
        Registry(run).quarantine("../checkpoint-30.pt", "me", "another folder's")
    assert Registry(run).quarantine(str(run / "checkpoint-30.pt"), "me", "bad batch").exists()
    path = Registry(run).quarantine("checkpoint-30.pt", "me", "bad batch", move=True)
    assert path.name == "quarantined.checkpoint-30.pt"
    assert path.exists()
    assert states(run) == {10: "suspect", 20: "suspect"}


def test_incidents_beside_checkpoints_are_left_alone(run):
    """A bundle's gradients are non-finite as they should be; it is no checkpoint to move away."""
    known = [one.name for one in find_checkpoints(run)]
    for name in ("run-step00000003.bundle", "run-step00000003.findings"):
        (run / name).mkdir()
        shutil.copy(run / "checkpoint-30.pt", run / name / "gradients.pt")
    assert [one.name for one in find_checkpoints(run)] == known
    with pytest.raises(UsageError, match="evidence of an incident"):
        find_checkpoints(run / name)


def test_pruning_keeps_the_newest_committed_one(run):
    registry = Registry(run, clean_steps=0)
    registry.scan()
    registry.clean(10)
    assert states(run) == {10: "committed", 20: "suspect", 30: "suspect"}
    assert not registry.may_delete(run / "checkpoint-10.pt")
    assert registry.may_delete(run / "checkpoint-20.pt")
    assert [path.name for path in registry.prune(keep=1)] == ["checkpoint-20.pt"]
    assert set(states(run)) == {10, 30}


def test_a_damaged_states_file_is_never_guessed_around(run):
    Registry(run).scan()
    (run / STATES_FILE).write_text('{"schema": "workbench.checkpoints/1", "checkpoints": {')
    with pytest.raises(CheckpointError, match="not known which checkpoints"):
        Registry(run).latest()


def test_pipes_and_devices_are_waited_for_nowhere(run):
    os.mkfifo(run / "checkpoint-40.pt")
    os.mkfifo(run / "a.safetensors.index.json")
    os.mkfifo(run / "run.ledger.jsonl")
    os.mkfifo(run / "shard.safetensors")
    weights = {"weight_map": {"w": "shard.safetensors"}}
    (run / "b-50.safetensors.index.json").write_text(json.dumps(weights))
    Registry(run).scan()
    assert {step: state for step, state in states(run).items() if step} == {
        10: "suspect", 20: "suspect", 30: "suspect", 50: "quarantined",
    }  # fmt: skip
    damaged = next(one for one in Registry(run).known() if one.checkpoint.step == 50)
    assert "no regular file" in str(damaged.why)
    with pytest.raises(UsageError, match="not one ledger"):
        clean_steps_of(run)
    (lock,) = run.glob(".workbench-checkpoints*")
    lock.unlink()
    os.mkfifo(lock)
    Registry(run).clean(1000)
    assert states(run)[30] == "committed"
    (run / STATES_FILE).unlink()
    (run / STATES_FILE).symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match="no regular file"):
        Registry(run).latest()


def _save_and_note(directory, step):
    torch.save({"w": torch.ones(3)}, f"{directory}/checkpoint-{step}.pt")
    Registry(directory).saved(f"{directory}/checkpoint-{step}.pt")


def test_processes_do_not_lose_each_others_entries(tmp_path):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_save_and_note, args=(tmp_path, k)) for k in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert set(read_states(tmp_path).entries) == {f"checkpoint-{k}.pt" for k in range(4)}


def test_finding_the_latest_loads_no_torch(run):
    registry = Registry(run, clean_steps=0)
    registry.scan()
    registry.clean(100)
    code = (
        "import sys; from workbench.checkpoints import Registry; "
        f"print(Registry({str(run)!r}).latest().name, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["checkpoint-30.pt", "False"]


def test_a_ledger_tells_clean_steps_and_the_last_incident(tmp_path):
    records = [
        {"step": 1, "first_bad_stage": None, "alerts": []},
        {"step": 2, "first_bad_stage": "loss", "alerts": []},
        {"step": 3, "first_bad_stage": None, "alerts": []},
    ]
    text = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "r.ledger.jsonl").write_text(text + '{"step": 4, "cut of')
    seen = clean_steps_of(tmp_path)
    assert (seen.last_step, seen.last_incident) == (3, 2)
    with pytest.raises(UsageError, match="not one ledger"):
        clean_steps_of(tmp_path / "absent")
    (tmp_path / "r.ledger.jsonl").write_text("nonsense\n" + text)
    with pytest.raises(CheckpointError, match="damaged line"):
        clean_steps_of(tmp_path)
