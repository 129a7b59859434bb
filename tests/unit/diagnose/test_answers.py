"""The five answers on bundles written by the recorder."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from workbench.diagnose import diagnose
from workbench.diagnose.answers import NEEDS_REPLAY, QUESTIONS, five_answers
from workbench.evidence import open_bundle
from workbench.numerics import jsonio
from workbench.record import Recorder
from workbench.record.policy import Policy
from workbench.step import TrainingStep


class LogOfZero(TrainingStep):
    def build_model(self):
        torch.manual_seed(0)
        return nn.Linear(2, 2)

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def forward(self, model, batch):
        return model(batch["x"])

    def loss(self, outputs, batch):
        return (outputs * 0.0).sum(-1).log().mean()


def record(directory, rank=0, world=1, policy=None, **named):
    step = LogOfZero()
    model = step.build_model()
    recorder = Recorder(
        step,
        model,
        step.build_optimizer(model),
        directory=directory,
        run_id="run",
        policy=policy or Policy(on_nonfinite="skip"),
        **named,
    )
    recorder.rank, recorder.world = rank, world
    result = recorder.train_step({"x": torch.ones(3, 2)})
    return open_bundle(result.incident)


def by_key(answers):
    assert [one.question for one in answers] == list(QUESTIONS.values())
    return {one.key: one for one in answers}


def test_the_record_alone_answers_what_it_supports(tmp_path):
    bundle = record(tmp_path)
    said = by_key(five_answers(bundle, None))
    assert said["where"].sentence.startswith("Caught at loss: step 0, micro-step 0")
    assert "Born at" not in said["where"].sentence
    assert "needs a replay" in said["where"].sentence
    assert "not scanned" in said["contaminated"].sentence
    assert said["ranks"].sentence.startswith("One process")
    assert said["reproduced"].sentence.startswith("Not replayed yet.")
    assert said["prevent"].sentence == NEEDS_REPLAY
    assert all(one.command.startswith("workbench ") for one in said.values())
    assert all(bundle.path.name in one.command for one in said.values())
    assert str(tmp_path) not in jsonio.dumps([one.as_dict() for one in said.values()])


def test_findings_carry_the_answers_that_the_terminal_prints(tmp_path):
    bundle = record(tmp_path)
    findings = diagnose(bundle, step=LogOfZero())
    assert findings.data["answers"] == [a.as_dict() for a in five_answers(bundle, findings)]
    said = by_key(five_answers(bundle, findings))
    event = findings.origins[0]["event"]
    assert "Born at aten.log.default in loss" in said["where"].sentence
    assert f"event {event} of the traced replay" in said["where"].evidence
    assert said["contaminated"].sentence.startswith("Stopped before the update")
    assert said["reproduced"].sentence.startswith("Replayed exactly")
    assert findings.origins[0]["fix"].rstrip(".") in said["prevent"].sentence


@pytest.mark.parametrize("kept", ["statistics"])
def test_a_bundle_that_cannot_be_replayed_says_what_is_missing(tmp_path, kept):
    bundle = record(tmp_path, policy=Policy(on_nonfinite="skip", save=kept))
    said = by_key(five_answers(bundle, None))
    assert "the policy keeps statistics only" in said["reproduced"].sentence


def test_ranks_that_decided_alike_and_those_that_did_not(tmp_path):
    first = record(tmp_path / "a", rank=0, world=2)
    alone = by_key(five_answers(first, None))["ranks"].sentence
    assert alone.startswith("Known of rank 0 alone")
    assert "Not read: rank 1" in alone
    record(tmp_path / "a", rank=1, world=2)
    alike = by_key(five_answers(first, None))["ranks"].sentence
    assert alike.startswith("Alike on ranks 0 and 1")
    assert "Not read" not in alike

    left = record(tmp_path / "b", rank=0, world=2)
    record(tmp_path / "b", rank=1, world=2, policy=Policy(on_nonfinite="continue"))
    apart = by_key(five_answers(left, None))["ranks"].sentence
    assert apart.startswith("No: rank 0: "), apart
    assert "the update was made" in apart
    assert "no longer equal" in apart


class BadWeight(LogOfZero):
    def build_model(self):
        model = super().build_model()
        with torch.no_grad():
            model.weight[0, 1] = float("nan")
        return model


def test_what_was_there_before_is_not_called_born(tmp_path):
    step = BadWeight()
    model = step.build_model()
    recorder = Recorder(
        step,
        model,
        step.build_optimizer(model),
        directory=tmp_path,
        run_id="run",
        policy=Policy(on_nonfinite="skip"),
    )
    bundle = open_bundle(recorder.train_step({"x": torch.ones(3, 2)}).incident)
    findings = diagnose(bundle, step=BadWeight())
    said = by_key(five_answers(bundle, findings))["where"].sentence
    assert "It was in the parameter weight before the step began." in said
    assert "Born at" not in said
