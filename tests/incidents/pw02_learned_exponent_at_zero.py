"""A gamma layer raises pixels to a learned exponent: 0 ** 0.5 is 0, but its derivative with respect
to the pixel, which an earlier layer made, is 0 ** -0.5."""

import torch
from torch import nn


class Gamma(nn.Module):
    def __init__(self):
        super().__init__()
        self.exponent = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return torch.pow(x, self.exponent)


def build():
    torch.manual_seed(63)
    model = nn.Sequential(nn.Linear(4, 4), Gamma(), nn.Linear(4, 1))
    with torch.no_grad():
        model[0].weight.abs_()
        model[0].bias.fill_(0.1)
    xs = [torch.rand(5, 4) + 0.1 for _ in range(3)]
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, [{"x": x} for x in xs]


def PRE_STEP(k, model, opt, scaler):
    if k == 2:
        with torch.no_grad():
            model[0].bias[1] = 0.0
            model[0].weight[1] = 0.0


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
