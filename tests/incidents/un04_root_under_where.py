"""A square root is taken where its argument is positive, and 0 elsewhere. At 0 the root is finite,
and where sends its derivative, which is infinite there, a gradient of 0."""

import torch
from torch import nn


def build():
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    batches = [{"x": torch.randn(4, 4), "keep": torch.ones(4, 3)} for _ in range(4)]
    batches[2]["keep"][1, 2] = 0.0
    return model, torch.optim.Adam(model.parameters(), 1e-3), None, batches


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    energy = outputs * outputs * batch["keep"]
    return torch.where(energy > 0, torch.sqrt(energy), torch.zeros_like(energy)).mean()
