"""Capture requests: a live run answers the next step, once, and only its own."""

from __future__ import annotations

import pytest
import recorded_steps as steps
from recorder_helpers import make

from workbench import open_bundle
from workbench.errors import CannotRunError, UsageError
from workbench.evidence import find_bundles
from workbench.evidence.presence import Presence
from workbench.record.requests import REQUEST_FILE, ask


def test_the_next_step_makes_a_bundle_and_only_that(tmp_path):
    step, recorder = make(steps.Cnn, tmp_path)
    assert recorder.train_step(step.batch(0)).incident is None
    ask(tmp_path, "the loss looks odd")
    path = recorder.train_step(step.batch(1)).incident
    assert open_bundle(path).kind == "captured"
    assert open_bundle(path).evidence()["reason"] == "the loss looks odd"
    assert recorder.train_step(step.batch(2)).incident is None
    assert find_bundles(tmp_path) == [path]
    assert not list(tmp_path.glob(f"*{REQUEST_FILE}*"))


def test_a_loop_of_the_users_own_answers_too(tmp_path):
    step, recorder = make(steps.Cnn, tmp_path)
    recorder.train_step(step.batch(0))
    ask(tmp_path, "why not")
    with recorder.step(step.batch(1)) as s:
        loss = sum(step.loss(step.forward(recorder.model, step.batch(1)), step.batch(1)).values())
        s.loss(loss)
        loss.backward()
        s.gradients()
        s.update()
    assert open_bundle(s.result.incident).evidence()["reason"] == "why not"


def test_a_request_to_another_run_is_left_alone(tmp_path):
    step, recorder = make(steps.Cnn, tmp_path)
    recorder.train_step(step.batch(0))
    (tmp_path / "other.ledger.jsonl").write_text("{}\n")
    other = Presence(tmp_path, "other")
    other.begin()
    ask(tmp_path, "for the other", run_id="other")
    assert recorder.train_step(step.batch(1)).incident is None
    assert (tmp_path / REQUEST_FILE).exists()


def test_a_request_that_cannot_be_read_is_answered_and_said_to_be(tmp_path):
    step, recorder = make(steps.Cnn, tmp_path)
    (tmp_path / REQUEST_FILE).write_text("nonsense")
    path = recorder.train_step(step.batch(0)).incident
    assert "could not be read" in open_bundle(path).evidence()["reason"]


def test_a_run_that_has_ended_is_not_asked(tmp_path):
    step, recorder = make(steps.Cnn, tmp_path)
    recorder.train_step(step.batch(0))
    recorder.close()
    with pytest.raises(CannotRunError, match="No recorder is alive"):
        ask(tmp_path, "too late")
    assert not (tmp_path / REQUEST_FILE).exists()
    step, resumed = make(steps.Cnn, tmp_path)
    ask(tmp_path, "now")
    assert resumed.train_step(step.batch(1)).incident is not None


def test_wrong_use_is_told(tmp_path):
    with pytest.raises(UsageError, match="no ledger"):
        ask(tmp_path, "why")
    (tmp_path / "r.ledger.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match="No reason"):
        ask(tmp_path, " ")
    with pytest.raises(UsageError, match="'x'"):
        ask(tmp_path, "why", run_id="x")
