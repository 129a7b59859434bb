"""A regression target is off by 1e9 in one batch: the gradient is 1e9 times its usual size, the
weights follow, and the loss overflows in the steps after."""

import torch
from torch import nn


def build():
    torch.manual_seed(217)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 1))
    batches = []
    for k in range(8):
        x = torch.randn(8, 4)
        y = x.sum(1, keepdim=True)
        if k == 2:
            y[3] = 1e9
        batches.append({"x": x, "y": y})
    return model, torch.optim.SGD(model.parameters(), 5e-2), None, batches


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - batch["y"]).pow(2).mean()
