"""Healthy: atan2 at (0, 0), for an agent that stands still. Its derivative takes the reciprocal of
0 on the way, but torch masks that: the gradient there is 0."""

import torch
from torch import nn


class Heading(nn.Module):
    def __init__(self):
        super().__init__()
        self.velocity = nn.Linear(3, 2, bias=False)

    def forward(self, x):
        v = self.velocity(x)
        return torch.atan2(v[:, 1], v[:, 0])


def build():
    torch.manual_seed(62)
    model = Heading()
    xs = [torch.randn(4, 3) for _ in range(3)]
    xs[1][2] = 0.0
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, [{"x": x} for x in xs]


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (1 - torch.cos(outputs)).mean()
