"""Small steps that fail in float16, recorded; imported by the processes of a sweep too."""

import contextlib
from pathlib import Path

import torch
from torch import nn

from workbench import Autocast, NonFiniteError, Recorder, TrainingStep
from workbench.evidence import find_bundles


class Block(nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.up = nn.Linear(4, 4, bias=False)
        self.down = nn.Linear(4, 4, bias=False)
        nn.init.constant_(self.up.weight, gain)
        nn.init.constant_(self.down.weight, 1 / gain)

    def forward(self, x):
        return x + self.down(self.up(x))


class Half(TrainingStep):
    """float16 autocast; a weight of block 1 exceeds 65504, the largest float16."""

    autocast = Autocast(torch.float16, "cpu")
    gains = (1.0, 1e5, 1.0)

    def build_model(self):
        return nn.Sequential(*[Block(gain) for gain in self.gains])

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), 1e-3)

    def forward(self, model, batch):
        return model(batch["x"])

    def loss(self, outputs, batch):
        return outputs.float().mean()


class Twice(Half):
    """Two blocks overflow: both must leave float16."""

    gains = (1e5, 1.0, 1e5)


class Dies(Half):
    """Ends its process where it may not run in float16."""

    def forward(self, model, batch):
        if not torch.is_autocast_enabled("cpu"):
            import os

            os._exit(7)
        return model(batch["x"])


class LogOfNegative(Half):
    """Fails under every precision."""

    autocast = None
    gains = (1.0,)

    def loss(self, outputs, batch):
        return torch.log(-outputs.abs()).mean()


def record(kind, directory):
    """Record one failing step; returns the bundle's path."""
    step = kind()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = step.build_model()
        recorder = Recorder(
            step, model, step.build_optimizer(model), directory=directory, run_id="half"
        )
        with contextlib.suppress(NonFiniteError):
            recorder.train_step({"x": torch.ones(2, 4)})
    return find_bundles(directory)[0]


def reference(kind):
    """How another process finds a step of this file."""
    return f"{Path(__file__)}:{kind.__name__}"
