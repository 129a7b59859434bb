"""HEALTHY: a loss scale that doubles every step finds its limit, one step is skipped, the scale
halves and training goes on; without the scale the same gradients are finite."""

import torch
from torch import nn

AUTOCAST = {"dtype": torch.float16}


def build():
    torch.manual_seed(116)
    model = nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv1d(4, 1, 3, padding=1))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    batches = [{"x": torch.randn(4, 2, 6)} for _ in range(10)]
    return model, torch.optim.SGD(model.parameters(), 1e-3), scaler, batches


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs.float() - 1).pow(2).sum()
