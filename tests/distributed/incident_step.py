"""The step that the tests of incidents of many ranks record and replay."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import workbench


class Net(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 16)
        self.b = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.tanh(self.a(x)))


class Step(workbench.TrainingStep):
    """Its loss has the logarithm of a value of the batch."""

    def build_model(self) -> nn.Module:
        torch.manual_seed(0)
        return Net()

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-2)

    def forward(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return model(batch["x"])

    def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return (outputs.square().mean(1) * batch["x"].amin(1).log()).mean()


class Huge(Step):
    """Gradients near the largest float32: finite on each rank, not in their sum."""

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1e-3)

    def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return (outputs * batch["w"]).sum()
