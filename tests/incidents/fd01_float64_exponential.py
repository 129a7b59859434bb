"""A kinetics model in float64: an Arrhenius rate exp(E) with E = 800 overflows even double
precision."""

import torch
from torch import nn


class Rate(nn.Module):
    def __init__(self):
        super().__init__()
        self.energy = nn.Linear(2, 1)

    def forward(self, x):
        return torch.exp(self.energy(x))


def build():
    torch.manual_seed(224)
    model = nn.Sequential(Rate()).double()
    with torch.no_grad():
        model[0].energy.weight.fill_(1.0)
    xs = [torch.rand(4, 2, dtype=torch.float64) for _ in range(3)]
    xs[1][2] = 400.0
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, [{"x": x} for x in xs]


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
