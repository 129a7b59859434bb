"""A warm restart multiplies the learning rate by 1e6 for one step. The step itself is finite; the
network overflows in forward later."""

import torch
from torch import nn


def build():
    torch.manual_seed(216)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    batches = [{"x": torch.randn(16, 4)} for _ in range(8)]
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def PRE_STEP(k, model, opt, scaler):
    opt.param_groups[0]["lr"] = 1e7 if k == 2 else 1e-2


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - batch["x"].sum(1, keepdim=True)).pow(2).mean()
