"""HEALTHY: inverse distance weights 1 / d of a point on itself are Inf; they are data, not
differentiated, and clamped to the maximum that the method prescribes."""

import torch
from torch import nn


class InverseDistance(nn.Module):
    def forward(self, x):
        with torch.no_grad():
            weight = (1 / (x[:, None] - x[None]).abs().sum(-1)).clamp(max=10.0)
            return weight / weight.sum(-1, keepdim=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = InverseDistance()
        self.value = nn.Linear(2, 1)

    def forward(self, x):
        return self.weight(x) @ self.value(x)


def build():
    torch.manual_seed(110)
    model = Net()
    batches = [{"x": torch.randn(5, 2)} for _ in range(3)]
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
