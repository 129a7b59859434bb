"""Training computes the same with and without the recorder, on models that make recording hard."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from workbench import Policy, Recorder, TrainingStep
from workbench.diagnose.zoo_step import incident_step, seed_everything
from workbench.evidence.presence import MARK
from workbench.numerics.digests import tensor_digest
from workbench.step import StepRunner, capture_rng

INCIDENTS = Path(__file__).parents[2] / "incidents"
HEALTHY = sorted(p.stem for p in INCIDENTS.glob("nh*.py"))
STEPS = 6


class Square(TrainingStep):
    """Forward on ``x``, mean of squares, SGD with momentum."""

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)

    def forward(self, model, batch):
        return model(batch["x"])

    def loss(self, outputs, batch):
        return outputs.pow(2).mean() * (1 + random.random())

    def batches(self, model):
        return [{"x": torch.randn(4, 6)} for _ in range(STEPS)]


class Tied(Square):
    def build_model(self):
        model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
        model[2].weight = model[0].weight
        return model


class Parametrized(Square):
    def build_model(self):
        normed = parametrizations.weight_norm(nn.Linear(6, 5))
        return nn.Sequential(normed, parametrizations.spectral_norm(nn.Linear(5, 4)))


class Lazy(Square):
    def build_model(self):
        return nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.Linear(5, 1))


class Meta(Square):
    """A part of the model has no values: it was left on the meta device and is not used."""

    def build_model(self):
        model = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5))
        model.register_module("unused", nn.Linear(4, 4, device="meta"))
        model.forward = lambda x: model[1](model[0](x))
        return model

    def build_optimizer(self, model):
        return torch.optim.SGD(model[0].parameters(), 1e-2)


class SharedWithBatch(Square):
    """The batch is a view of a buffer that the model counts up in forward."""

    def build_model(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(6, 2)
                self.register_buffer("memory", torch.ones(STEPS, 4, 6))

            def forward(self, x):
                self.memory.add_(0.25)
                return self.linear(x * 1.0)

        return Net()

    def batches(self, model):
        return [{"x": model.memory[k]} for k in range(STEPS)]


class Closure(Square):
    """LBFGS, which evaluates the loss as often as it likes."""

    def build_model(self):
        return nn.Linear(6, 1)

    def build_optimizer(self, model):
        return torch.optim.LBFGS(model.parameters(), max_iter=3)

    def batches(self, model):
        self.all = Square.batches(self, model)
        return self.all

    def update(self, model, optimizer, scaler):
        batch = self.all[self.step_index]

        def closure():
            optimizer.zero_grad()
            loss = model(batch["x"]).pow(2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)


class FromNumpy(Square):
    """Parameters over a numpy array, as files mapped into memory are: they cannot be shared."""

    def build_model(self):
        model = nn.Linear(6, 2)
        model.weight = nn.Parameter(torch.from_numpy(np.ones((2, 6), np.float32) * 0.3))
        return model


ODD = {k.__name__: k for k in
       (Tied, Parametrized, Lazy, Meta, SharedWithBatch, Closure, FromNumpy)}  # fmt: skip


def made(name):
    if name in ODD:
        step = ODD[name]()
        torch.manual_seed(11)
        random.seed(11)
        np.random.seed(11)
        model = step.build_model()
        optimizers = [step.build_optimizer(model)]
        return step, model, optimizers, None, step.batches(model)
    step = incident_step(INCIDENTS / f"{name}.py")
    seed_everything()
    model, optimizers, scaler, batches = step.build()
    return step, model, list(optimizers), scaler, list(batches)[:STEPS]


def digests(model, optimizers):
    values = {k: tensor_digest(v) for k, v in model.state_dict().items() if not v.is_meta}
    moments = [
        (key, tensor_digest(value) if isinstance(value, torch.Tensor) else str(value))
        for optimizer in optimizers
        for entries in optimizer.state.values()
        for key, value in entries.items()
    ]
    return values, moments, capture_rng().digest()


@pytest.mark.parametrize("name", [*HEALTHY, *ODD])
def test_recording_changes_nothing(tmp_path, name):
    """Also with every step kept, every step scanned in full and a bundle made on the way."""
    step, model, optimizers, scaler, batches = made(name)
    for k, batch in enumerate(batches):
        runner = StepRunner(step, model, optimizers, scaler)
        runner.begin([batch], k)
        while runner.next_unit is not None:
            assert runner.advance().exception is None
    bare = digests(model, optimizers)
    wanted = (
        Policy(on_nonfinite="continue"),
        Policy(on_nonfinite="continue", recovery_every=2, deep_scan_every=1),
    )
    for number, policy in enumerate(wanted):
        step, model, optimizers, scaler, batches = made(name)
        recorder = Recorder(step, model, optimizers, scaler, tmp_path, f"r{number}", policy)
        for k, batch in enumerate(batches):
            recorder.train_step(batch, capture="look" if k == 2 else None)
        recorder.close()
        assert digests(model, optimizers) == bare
        assert recorder.failures == []


class Interrupted(Square):
    """The user stops the second step in the middle of forward, or an exception does."""

    def build_model(self):
        return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 1))

    def forward(self, model, batch):
        hidden = model[:2](batch["x"])
        if batch["stop"]:
            raise self.error
        return model[2:](hidden)


@pytest.mark.parametrize("error", [KeyboardInterrupt("stop"), ValueError("mine")])
def test_a_step_that_is_interrupted_leaves_training_as_it_was(tmp_path, error):
    def train(recorder_of):
        torch.manual_seed(5)
        random.seed(5)
        step = Interrupted()
        step.error = error
        model = step.build_model()
        optimizer = step.build_optimizer(model)
        recorder = recorder_of(step, model, optimizer)
        for k, batch in enumerate(step.batches(model)):
            batch["stop"] = k == 2
            try:
                if recorder is not None:
                    recorder.train_step(batch)
                    continue
                optimizer.zero_grad()
                step.loss(step.forward(model, batch), batch).backward()
                optimizer.step()
            except (KeyboardInterrupt, ValueError) as raised:
                assert raised is error
                assert k == 2
        return digests(model, [optimizer]), recorder

    bare, _ = train(lambda *objects: None)
    recorded, recorder = train(lambda *objects: Recorder(*objects, None, tmp_path, "r"))
    assert recorded == bare
    assert recorder.failures == []
    assert len(recorder.bundles) == (1 if isinstance(error, ValueError) else 0)
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".")] == [tmp_path / MARK]
    if isinstance(error, ValueError):
        assert any(str(recorder.bundles[0]) in note for note in error.__notes__)
