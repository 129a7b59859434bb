"""Healthy: a zero length is replaced before the division and again after it (double where), so that
neither value nor derivative meets it; a zero norm's derivative is 0 by definition."""

import torch
from torch import nn


class Direction(nn.Module):
    def forward(self, v):
        length = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
        safe = torch.where(length > 0, length, torch.ones_like(length))
        return torch.where(length > 0, v / safe, torch.zeros_like(v))


def build():
    torch.manual_seed(76)
    model = nn.Sequential(nn.Linear(3, 3, bias=False), Direction(), nn.Linear(3, 1))
    xs = [torch.randn(4, 3) for _ in range(3)]
    xs[1][0] = 0.0
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, [{"x": x} for x in xs]


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return outputs.pow(2).mean()
