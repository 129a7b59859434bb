"""After a resume one momentum buffer of SGD holds NaN: loss and gradients are finite, the first
update is not."""

import torch
from torch import nn


def build():
    torch.manual_seed(42)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9, foreach=False)
    return model, optimizer, None, [{"x": torch.randn(4, 3)} for _ in range(4)]


def PRE_STEP(k, model, opt, scaler):
    if k == 2:
        opt.state[model[2].weight]["momentum_buffer"][0, 1] = float("nan")


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
