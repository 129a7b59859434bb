"""Frozen batch normalisation whose running variance became negative by arithmetic on the
weights of several models."""

import torch
from torch import nn
from torch.nn import functional


def build():
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[1].eval()
    with torch.no_grad():
        model[1].running_var[2] = -0.3
    return (
        model,
        torch.optim.SGD(model.parameters(), 1e-2),
        None,
        [{"x": torch.randn(3, 4), "y": torch.tensor([0, 1, 1])} for _ in range(2)],
    )


def PRE_STEP(k, model, opt, scaler):
    model[1].eval()


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return functional.cross_entropy(outputs, batch["y"])
