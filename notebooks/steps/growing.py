"""Residual blocks without a norm: activations grow from block to block until float16 ends."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import workbench


class Block(nn.Module):
    """Adds to its input what it makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Step(workbench.TrainingStep):
    autocast = workbench.Autocast(torch.float16)

    def build_model(self) -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(*(Block() for _ in range(8)), nn.Linear(16, 1))
        for block in model[:-1]:
            nn.init.orthogonal_(block.up.weight, 3.0)
            nn.init.orthogonal_(block.down.weight, 3.0)
        return model

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-3)

    def forward(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return model(batch["x"])

    def loss(self, outputs: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return (outputs.float() - batch["y"]).abs().mean()


def record(directory: str | Path) -> str:
    """Train until a step trips; the bundle's path."""
    step = Step()
    model = step.build_model()
    recorder = workbench.Recorder(
        step, model, step.build_optimizer(model), directory=directory, run_id="growing"
    )
    generator = torch.Generator().manual_seed(1)
    for scale in (0.01, 0.01, 1.0):
        x = torch.randn(4, 16, generator=generator) * scale
        try:
            recorder.train_step({"x": x, "y": torch.zeros(4, 1)})
        except workbench.NonFiniteError as error:
            return str(error.bundle)
    raise AssertionError("no step tripped")
