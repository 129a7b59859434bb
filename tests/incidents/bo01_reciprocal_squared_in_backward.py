"""log(1/x) at x = 1e-30 is 69, well inside float32; the derivative of 1/x squares its result,
1e60, and overflows in backward only."""

import torch
from torch import nn


class InverseScale(nn.Module):
    def forward(self, x):
        return x.reciprocal().log()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(3))
        self.inverse = InverseScale()

    def forward(self, x):
        return self.inverse(self.gain * x).mean(-1)


def build():
    torch.manual_seed(315)
    model = Net()
    xs = [torch.rand(4, 3) + 0.5 for _ in range(3)]
    xs[2][1, 0] = 1e-30
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, [{"x": x} for x in xs]


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
