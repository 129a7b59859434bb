"""Mixture weights are normalised in place on a view of the output (the other columns stay raw);
all weights of one row were clipped to 0 before."""

import torch
from torch import nn


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(3, 6)

    def forward(self, x):
        out = self.inp(x).clone()
        weight = out[:, 1:4]
        weight.clamp_(min=0)
        weight.div_(weight.sum(-1, keepdim=True).detach())
        return out


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mixture = Mixture()
        self.head = nn.Linear(6, 1)

    def forward(self, x):
        return self.head(self.mixture(x))


def build():
    torch.manual_seed(26)
    model = Net()
    with torch.no_grad():
        model.mixture.inp.weight[1:4] = torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]])
        model.mixture.inp.bias.zero_()
    xs = [torch.rand(4, 3) + 0.1 for _ in range(3)]
    xs[1][2] = -1.0
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, [{"x": x} for x in xs]


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
