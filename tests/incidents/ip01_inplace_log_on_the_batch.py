"""The model takes the logarithm of its input in place, so the batch itself changes in the step;
one reading is 0."""

import torch
from torch import nn


class LogInput(nn.Module):
    def forward(self, x):
        return x.log_()


def build():
    torch.manual_seed(402)
    model = nn.Sequential(LogInput(), nn.Linear(3, 1))
    xs = [torch.rand(4, 3) + 0.1 for _ in range(3)]
    xs[1][2, 1] = 0.0
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, [{"x": x} for x in xs]


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
