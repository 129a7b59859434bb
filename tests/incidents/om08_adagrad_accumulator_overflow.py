"""Adagrad's sum of squares overflows for one gradient of 3e20: those weights get 0 as their
update for ever. Loss and weights stay finite; only the state is not."""

import torch
from torch import nn


def build():
    torch.manual_seed(43)
    model = nn.Linear(3, 1)
    batches = [{"x": torch.rand(4, 3) + 0.5, "w": w} for w in (1.0, 3e20, 1.0)]
    return model, torch.optim.Adagrad(model.parameters(), 1e-2, foreach=False), None, batches


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return outputs.abs().mean() * batch["w"]
