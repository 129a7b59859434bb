"""A gradient-free normaliser reads its scale out with .item(): 0/0 leaves the tensors as a Python
number and comes back through a multiplication."""

import torch
from torch import nn


class Gain(nn.Module):
    def forward(self, x):
        gain = (x.detach().abs().mean() / x.detach().abs().max()).item()
        return x * gain


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = Gain()
        self.head = nn.Linear(3, 1)

    def forward(self, x):
        return self.head(self.gain(x))


def build():
    torch.manual_seed(211)
    model = Net()
    xs = [torch.randn(4, 3) for _ in range(3)]
    xs[2].zero_()
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, [{"x": x} for x in xs]


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
