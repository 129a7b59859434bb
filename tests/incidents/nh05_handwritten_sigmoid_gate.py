"""HEALTHY: a detached gate 1 / (1 + exp(-x)) by hand; exp(100) is Inf in float32 and 1 / Inf is
the right answer, 0."""

import torch
from torch import nn


class Gate(nn.Module):
    def forward(self, x):
        with torch.no_grad():
            return 1 / (1 + torch.exp(-x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.gate = Gate()
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        hidden = self.body(x)
        return self.head(hidden.tanh() * self.gate(hidden))


def build():
    torch.manual_seed(103)
    model = Net()
    xs = [torch.randn(5, 3) for _ in range(3)]
    xs[1][2] *= 400
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, [{"x": x} for x in xs]


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
