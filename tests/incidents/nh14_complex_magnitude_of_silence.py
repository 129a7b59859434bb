"""HEALTHY: magnitude and phase of a silent frame: complex abs and angle have gradient 0 at 0."""

import torch
from torch import nn


class Spectrum(nn.Module):
    def forward(self, x):
        bins = torch.fft.rfft(x, dim=-1)
        return torch.cat([bins.abs(), bins.angle()], -1)


def build():
    torch.manual_seed(112)
    model = nn.Sequential(nn.Linear(8, 8, bias=False), Spectrum(), nn.Linear(10, 1))
    xs = [torch.randn(3, 8) for _ in range(3)]
    xs[1][2] = 0.0
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, [{"x": x} for x in xs]


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
