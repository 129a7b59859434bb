"""Reversible instance norm of a forecaster divides by the unbiased standard deviation over time;
one series has a single time step left after cropping."""

import torch
from torch import nn


class InstanceNorm(nn.Module):
    def forward(self, x):
        return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5)


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = InstanceNorm()
        self.gru = nn.GRU(2, 5, batch_first=True)
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.gru(self.norm(x))[0][:, -1])


def build():
    torch.manual_seed(7)
    model = Forecaster()
    batches = [{"x": torch.randn(3, n, 2), "y": torch.randn(3, 2)} for n in (6, 4, 1, 5)]
    return model, torch.optim.Adam(model.parameters(), 1e-3), None, batches


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - batch["y"]).pow(2).mean()
