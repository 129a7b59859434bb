"""A vector quantiser anneals its temperature as a plain attribute of the module, 1 - calls/3, and
divides by it: at the fourth call it is 0."""

import torch
from torch import nn


class Relaxed(nn.Module):
    def __init__(self):
        super().__init__()
        self.codes = nn.Parameter(torch.randn(4, 3))
        self.calls = 0

    def forward(self, x):
        temperature = 1 - self.calls / 3
        self.calls += 1
        return ((x @ self.codes.T) / temperature).softmax(-1) @ self.codes


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(2, 3)
        self.relaxed = Relaxed()

    def forward(self, x):
        return self.relaxed(self.encoder(x))


def build():
    torch.manual_seed(215)
    model = Net()
    return (
        model,
        torch.optim.SGD(model.parameters(), 1e-2),
        None,
        [{"x": torch.randn(4, 2)} for _ in range(6)],
    )


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return outputs.pow(2).mean()
