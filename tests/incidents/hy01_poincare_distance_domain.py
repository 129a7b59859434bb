"""Hyperbolic embeddings: the argument of arcosh is 1 - tiny by rounding for two copies of a point
near the rim of the ball."""

import torch
from torch import nn


class Lorentz(nn.Module):
    def forward(self, x, y):
        time_x = torch.sqrt(1 + (x * x).sum(-1))
        time_y = torch.sqrt(1 + (y * y).sum(-1))
        return torch.acosh(time_x * time_y - (x * y).sum(-1))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(3, 3, bias=False)
        self.distance = Lorentz()

    def forward(self, x, y):
        return self.distance(self.project(x), self.project(y))


def build():
    torch.manual_seed(59)
    model = Net()
    batches = []
    for k in range(3):
        x, y = torch.randn(8, 3), torch.randn(8, 3) + 3
        if k == 1:
            x[4:] *= 50
            y[4:] = x[4:]
        batches.append({"x": x, "y": y})
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, batches


def forward(model, batch):
    return model(batch["x"], batch["y"])


def loss(outputs, batch):
    return outputs.mean()
