"""Outliers are marked by writing NaN into the activations, and one branch forgets to use
nanmean."""

import torch
from torch import nn


class Mark(nn.Module):
    def forward(self, x):
        return x.masked_fill(x.abs() > 4, float("nan"))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.mark = Mark()
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.mark(self.body(x)).mean(0))


def build():
    torch.manual_seed(225)
    model = Net()
    xs = [torch.randn(4, 3) for _ in range(3)]
    xs[1][2] *= 30
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, [{"x": x} for x in xs]


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
