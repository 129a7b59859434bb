"""Adam with a tensor learning rate (as for compiled or captured steps); the loop's cosine
schedule writes NaN into it because its total number of steps is 0."""

import torch
from torch import nn


def build():
    torch.manual_seed(41)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-2), foreach=False)
    return model, optimizer, None, [{"x": torch.randn(4, 3)} for _ in range(4)]


def PRE_STEP(k, model, opt, scaler):
    if k == 2:
        total = torch.tensor(0.0)
        opt.param_groups[0]["lr"].copy_(1e-2 * torch.cos(torch.pi * total / total))


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
