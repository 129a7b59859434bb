"""Checkpoints of a recorded run: committed by clean steps, doubted after an incident."""

from __future__ import annotations

import math

import pytest
import recorded_steps as steps
import torch
from recorder_helpers import make

from workbench import NonFiniteError, Policy, open_bundle
from workbench.checkpoints import Registry
from workbench.errors import UsageError
from workbench.evidence import summary_facts, summary_lines


def _save(recorder, directory):
    path = directory / f"checkpoint-{recorder.step_index - 1}.pt"
    torch.save({"model": recorder.model.state_dict()}, path)
    recorder.checkpoint_saved(path)
    return path


def _states(directory):
    return {one.checkpoint.step: one.state for one in Registry(directory).known()}


@pytest.fixture
def saved(tmp_path):
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    return directory


def test_clean_steps_commit_and_an_incident_casts_doubt(tmp_path, saved):
    step, recorder = make(steps.Cnn, tmp_path, Policy(on_nonfinite="skip"), checkpoints=saved)
    recorder.checkpoints.registry.clean_steps = 3
    for k in range(3):
        recorder.train_step(step.batch(k))
    _save(recorder, saved)
    for k in range(4):
        recorder.train_step(step.batch(k))
    recorder.close()
    assert _states(saved) == {2: "committed"}
    _save(recorder, saved)  # after step 6
    recorder.train_step(step.batch(0))
    recorder.checkpoints.proven_clean = 5  # as of a large model, read in full now and then
    recorder.train_step(step.batch(0, bad=True))
    assert _states(saved) == {2: "committed", 6: "suspect"}
    for k in range(4):
        recorder.train_step(step.batch(k))
    recorder.close()
    assert _states(saved) == {2: "committed", 6: "committed"}
    history = Registry(saved).known()[-1].entry.history
    assert "clean steps followed step 8" in history[-1]["why"]


def test_a_checkpoint_with_bad_values_is_quarantined_by_itself(tmp_path, saved):
    step, recorder = make(steps.Cnn, tmp_path, checkpoints=saved)
    recorder.train_step(step.batch(0))
    path = saved / "checkpoint-0.pt"
    torch.save({"w": torch.tensor([math.nan])}, path)
    recorder.checkpoint_saved(path)
    recorder.close()
    assert _states(saved) == {0: "quarantined"}
    assert recorder.failures == []


def test_a_directory_that_is_not_there_costs_nothing(tmp_path):
    step, recorder = make(
        steps.Cnn, tmp_path, Policy(on_nonfinite="skip"), checkpoints=tmp_path / "no"
    )
    for k in range(3):
        recorder.train_step(step.batch(k, bad=k == 1))
    recorder.close()
    assert recorder.failures == []


def test_a_recorder_without_checkpoints_says_so(tmp_path):
    _, recorder = make(steps.Cnn, tmp_path)
    with pytest.raises(UsageError, match="checkpoints="):
        recorder.checkpoint_saved(tmp_path / "a.pt")


def test_the_incident_says_what_to_resume_from(tmp_path, saved):
    step, recorder = make(steps.Cnn, tmp_path, checkpoints=saved)
    recorder.checkpoints.registry.clean_steps = 1
    recorder.train_step(step.batch(0))
    _save(recorder, saved)
    for k in range(3):
        recorder.train_step(step.batch(k))
    recorder.close()
    with pytest.raises(NonFiniteError, match=r"Resume  checkpoint-0.pt \(committed\)") as raised:
        recorder.train_step(step.batch(0, bad=True))
    bundle = open_bundle(raised.value.bundle)
    assert bundle.evidence()["checkpoints"]["latest"]["name"] == "checkpoint-0.pt"
    lines = summary_lines(summary_facts(bundle))
    assert lines[-1] == "Resume  checkpoint-0.pt (committed)."


def test_an_incident_of_a_run_without_a_committed_checkpoint_says_so(tmp_path, saved):
    step, recorder = make(steps.Cnn, tmp_path, checkpoints=saved)
    with pytest.raises(NonFiniteError, match="No checkpoint of this run was committed"):
        recorder.train_step(step.batch(0, bad=True))
