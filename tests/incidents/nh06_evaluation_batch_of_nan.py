"""HEALTHY: the loop evaluates on a batch whose features are NaN (a broken validation file).
Training batches, weights and BatchNorm statistics are not touched by it."""

import torch
from torch import nn


def build():
    torch.manual_seed(104)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    batches = [{"x": torch.randn(5, 3)} for _ in range(3)]
    batches.insert(1, {"x": torch.full((5, 3), float("nan")), "eval": True})
    return model, torch.optim.Adam(model.parameters(), 1e-3), None, batches


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
