"""A training step that fails by itself: softmax rounds a probability to zero, log gives −Inf."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from workbench import Policy, Recorder, TrainingStep
from workbench.errors import NonFiniteError


class Step(TrainingStep):
    def build_model(self):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5))

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=1e-2)

    def forward(self, model, batch):
        return model(batch["x"])

    def loss(self, outputs, batch):
        p = outputs.softmax(-1).gather(1, batch["y"][:, None])
        return -p.log().mean()


def record(directory: Path, step: TrainingStep | None = None) -> Path:
    """Train a few steps on ever larger inputs until one fails; returns the bundle."""
    step = step or Step()
    model = step.build_model()
    recorder = Recorder(
        step,
        model,
        step.build_optimizer(model),
        directory=directory,
        run_id="lab",
        policy=Policy(on_nonfinite="raise"),
    )
    generator = torch.Generator().manual_seed(1)
    for index in range(40):
        x = torch.randn(16, 8, generator=generator) * 1.6**index
        y = torch.randint(5, (16,), generator=generator)
        try:
            recorder.train_step({"x": x, "y": y})
        except NonFiniteError as error:
            return Path(str(error.bundle))
    raise AssertionError("the training run stayed finite")
