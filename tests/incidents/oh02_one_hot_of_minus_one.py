"""Unlabelled pixels are -1 and go to one_hot, which refuses them."""

import torch
import torch.nn.functional as F
from torch import nn


def build():
    torch.manual_seed(316)
    model = nn.Linear(3, 4)
    batches = []
    for k in range(3):
        y = torch.randint(0, 4, (5,))
        if k == 1:
            y[2] = -1
        batches.append({"x": torch.randn(5, 3), "y": y})
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model(batch["x"]).softmax(-1)


def loss(outputs, batch):
    return (outputs - F.one_hot(batch["y"], 4)).pow(2).mean()
