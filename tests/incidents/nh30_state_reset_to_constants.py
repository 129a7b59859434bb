"""HEALTHY: the code itself resets buffers to Inf and NaN, and its optimizer keeps a lowest loss that
begins at Inf: 'none yet', until a batch fills it."""

import math

import torch
from torch import nn


class Descent(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            self.state[p].setdefault("lowest", torch.tensor(math.inf))
        super().step(closure)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.register_buffer("best", torch.ones(5))
        self.register_buffer("window", torch.zeros(4))

    def forward(self, x, slot):
        self.best[slot] = math.inf
        if slot == 0:
            self.window.fill_(math.nan)
        self.window[slot] = x.mean()
        return self.fc(x) - self.window.nanmean()


def build():
    torch.manual_seed(109)
    model = Net()
    batches = [{"x": torch.randn(4, 3), "slot": k} for k in range(3)]
    return model, Descent(model.parameters(), 1e-3), None, batches


def forward(model, batch):
    return model(batch["x"], batch["slot"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
