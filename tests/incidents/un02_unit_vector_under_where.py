"""Directions are divided by their length, and zero vectors are selected away afterwards with where.
The forward is finite everywhere; the derivative of the division that was dropped is not."""

import torch
from torch import nn


class Direction(nn.Module):
    def forward(self, v):
        length = v.pow(2).sum(-1, keepdim=True)
        return torch.where(length > 0, v / length, torch.zeros_like(v))


def build():
    torch.manual_seed(73)
    model = nn.Sequential(nn.Linear(3, 3, bias=False), Direction(), nn.Linear(3, 1))
    xs = [torch.randn(4, 3) for _ in range(3)]
    xs[1][0] = 0.0
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, [{"x": x} for x in xs]


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return outputs.pow(2).mean()
