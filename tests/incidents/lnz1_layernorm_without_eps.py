"""LayerNorm with eps=0 meets a row that ReLU made constant: 0 / sqrt(0) inside the op."""

import torch
from torch import nn


def build():
    torch.manual_seed(201)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.LayerNorm(4, eps=0.0), nn.Linear(4, 1))
    with torch.no_grad():
        model[0].weight.abs_()
        model[0].bias.zero_()
    xs = [torch.rand(6, 3) for _ in range(3)]
    xs[1][4] = -1.0
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, [{"x": x} for x in xs]


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
