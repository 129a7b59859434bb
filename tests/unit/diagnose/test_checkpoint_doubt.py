"""A diagnosis speaks against checkpoints saved after an incident, where it has grounds to."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from workbench import Autocast, Policy, Recorder, TrainingStep, diagnose, open_bundle
from workbench.checkpoints import Registry
from workbench.diagnose.checkpoint_doubt import doubt_of


class Overflows(TrainingStep):
    """float16 overflows in the squares of a large batch; float32 does not."""

    autocast = Autocast(torch.float16, "cpu")

    def build_model(self):
        return nn.Linear(4, 2)

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), 1e-3)

    def forward(self, model, batch):
        return model(batch["x"])

    def loss(self, outputs, batch):
        return outputs.square().mean().float()


class Log(Overflows):
    """The logarithm of a negative number is NaN in any precision."""

    def loss(self, outputs, batch):
        return torch.log(outputs.float().abs().mean() - 1e6)


class Plain(Log):
    autocast = None


def recorded(kind, directory):
    torch.manual_seed(0)
    step = kind()
    model = step.build_model()
    optimizer = step.build_optimizer(model)
    policy = Policy(on_nonfinite="skip")
    recorder = Recorder(step, model, optimizer, None, directory, "r", policy, first_step=20)
    return recorder.train_step({"x": torch.full((3, 4), 3000.0)}).incident


@pytest.fixture
def checkpoints(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    registry = Registry(folder, clean_steps=5)
    for step in (10, 20, 30):
        torch.save({"w": torch.ones(4)}, folder / f"checkpoint-{step}.pt")
        registry.saved(folder / f"checkpoint-{step}.pt", step)
    registry.scan()
    registry.clean(17)
    registry.incident(20, 12, "non-finite values at loss in step 20")
    return folder


def states(folder):
    return {one.checkpoint.step: one.state for one in Registry(folder).known()}


@pytest.mark.parametrize(
    ("kind", "says"), [(Overflows, None), (Log, "float32"), (Plain, "float32")]
)
def test_what_persists_in_a_wider_precision_speaks_against_checkpoints(tmp_path, kind, says):
    bundle = open_bundle(recorded(kind, tmp_path))
    found = doubt_of(bundle, diagnose(bundle, step=kind()), kind())
    assert (found.reason is None) is (says is None), found
    assert says is None or says in found.reason
    assert says is not None or "overflow of float16 alone" in found.sentence


def test_without_a_replay_nothing_is_concluded(tmp_path):
    bundle = open_bundle(recorded(Plain, tmp_path))
    assert doubt_of(bundle, diagnose(bundle)).reason is None


def test_the_command_says_what_it_did(tmp_path, checkpoints):
    before = {10: "committed", 20: "suspect", 30: "suspect"}
    assert states(checkpoints) == before
    for kind, after in (
        (Overflows, before),
        (Plain, {10: "committed", 20: "quarantined", 30: "quarantined"}),
    ):
        path = recorded(kind, tmp_path / kind.__name__)
        command = [sys.executable, "-m", "workbench", "diagnose", str(path)]
        command += ["--step", f"{Path(__file__)}:{kind.__name__}"]
        command += ["--checkpoints", str(checkpoints)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        assert states(checkpoints) == after
        said = "quarantined checkpoint-20.pt, checkpoint-30.pt" if kind is Plain else "no state"
        assert said in done.stderr
    known = Registry(checkpoints).known()[-1]
    assert "persists in a float32 replay" in known.entry.history[-1]["why"]
