"""A norm in float16: op by op its eps is lost, compiled its middle values stay in float32."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import workbench


class Normalise(nn.Module):
    """Subtracts the mean and divides by the deviation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred * torch.rsqrt(x.var(-1, keepdim=True) + 1e-9)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6, dtype=torch.float16))
        self.norm = Normalise()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x) * self.scale


class Step(workbench.TrainingStep):
    def build_model(self) -> nn.Module:
        return Net()

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def forward(self, model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch)

    def loss(self, outputs: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return outputs.float().square().mean()


def record(directory: str | Path) -> str:
    """Record one step of uncompiled code; the bundle's path."""
    step = Step()
    model = step.build_model()
    recorder = workbench.Recorder(
        step, model, step.build_optimizer(model), directory=directory, run_id="half"
    )
    try:
        recorder.train_step(torch.full((3, 6), 0.5, dtype=torch.float16))
    except workbench.NonFiniteError as error:
        return str(error.bundle)
    raise AssertionError("no step tripped")
