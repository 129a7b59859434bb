"""The last batch has one sample and BatchNorm1d refuses to train on it."""

import torch
from torch import nn


def build():
    torch.manual_seed(310)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    batches = [{"x": torch.randn(n, 3)} for n in (4, 4, 1)]
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
