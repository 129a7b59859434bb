"""Targets come in another unit: the loss grows, and the scaler skips step after step."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import workbench


class Step(workbench.TrainingStep):
    autocast = workbench.Autocast(torch.float16)

    def build_model(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Linear(32, 1))

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.05)

    def build_scaler(self) -> torch.amp.GradScaler:
        return torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=10_000)

    def forward(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return model(batch["x"])

    def loss(self, outputs: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return (outputs.float() - batch["y"]).square().mean()


def record(directory: str | Path) -> str:
    """Train until an alert makes a bundle; its path."""
    step = Step()
    model = step.build_model()
    policy = workbench.Policy(
        recovery_every=10, on_nonfinite="skip", alerts=workbench.Alerts(consecutive_skips=6)
    )
    recorder = workbench.Recorder(
        step, model, step.build_optimizer(model), step.build_scaler(), directory, "storm", policy
    )
    generator = torch.Generator().manual_seed(1)
    for number in range(60):
        x = torch.randn(16, 8, generator=generator)
        # from step 12 on the targets come in another unit: the loss grows with every update
        y = x.sum(-1, keepdim=True) * (1.0 if number < 12 else 300.0 * 1.5 ** (number - 12))
        result = recorder.train_step({"x": x, "y": y})
        if result.incident:
            return str(result.incident)
    raise AssertionError("no step made a bundle")
