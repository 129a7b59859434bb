"""A cache tensor shares memory with a numpy array, and numpy (0 / 0 on an empty bin) writes NaN
into it: no torch op ever made the value."""

import numpy as np
import torch
from torch import nn


class Histogram(nn.Module):
    def forward(self, x):
        table = torch.zeros(4)
        seen = table.numpy()
        for bin_number in range(4):
            inside = (x >= bin_number) & (x < bin_number + 1)
            with np.errstate(all="ignore"):
                total = np.float32((x * inside).sum().item())
                seen[bin_number] = total / np.float32(inside.sum().item())
        return table * 0.1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hist = Histogram()
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.hist(x))


def build():
    torch.manual_seed(28)
    model = Net()
    xs = [torch.arange(16.0) / 4 for _ in range(3)]
    xs[1] = xs[1].clamp_max(2.9)
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, [{"x": x} for x in xs]


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
