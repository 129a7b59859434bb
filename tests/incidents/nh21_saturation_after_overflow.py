"""HEALTHY: Mish's tanh(exp(x)) style gate under no_grad: exp overflows and tanh(Inf) = 1 is
exact."""

import torch
from torch import nn


class Gate(nn.Module):
    def forward(self, x):
        with torch.no_grad():
            gate = torch.tanh(torch.exp(x))
        return x * gate


def build():
    torch.manual_seed(319)
    model = nn.Sequential(nn.Linear(3, 4), Gate(), nn.Linear(4, 1))
    xs = [torch.randn(4, 3) for _ in range(3)]
    xs[1][2] *= 500
    return model, torch.optim.SGD(model.parameters(), 1e-5), None, [{"x": x} for x in xs]


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).abs().mean()
