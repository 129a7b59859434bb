"""A vector is divided by its length; where() then drops the result for vectors of length zero."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import workbench


class Direction(nn.Module):
    """The unit vector, or zero for a zero vector."""

    def forward(self, v: torch.Tensor) -> torch.Tensor:
        length = v.square().sum(-1, keepdim=True).sqrt()
        return torch.where(length > 0, v / length, torch.zeros_like(v))


class Step(workbench.TrainingStep):
    def build_model(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 3, bias=False), Direction(), nn.Linear(3, 1))

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def forward(self, model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch)

    def loss(self, outputs: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return outputs.square().mean()


def record(directory: str | Path) -> str:
    """Train until a step trips; the bundle's path."""
    step = Step()
    model = step.build_model()
    recorder = workbench.Recorder(
        step, model, step.build_optimizer(model), directory=directory, run_id="where"
    )
    generator = torch.Generator().manual_seed(1)
    for number in range(3):
        batch = torch.randn(4, 3, generator=generator)
        if number == 2:
            batch[0] = 0.0
        try:
            recorder.train_step(batch)
        except workbench.NonFiniteError as error:
            return str(error.bundle)
    raise AssertionError("no step tripped")
