"""Weighted cross-entropy divides by the sum of the weights of the targets; a batch holds only
classes whose weight is 0 (excluded classes)."""

import torch
import torch.nn.functional as F
from torch import nn


def build():
    torch.manual_seed(309)
    model = nn.Linear(3, 4)
    batches = []
    for k in range(3):
        y = torch.tensor([0, 3, 1, 2]) if k != 2 else torch.tensor([3, 3, 3, 3])
        batches.append({"x": torch.randn(4, 3), "y": y})
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return F.cross_entropy(outputs, batch["y"], weight=torch.tensor([1.0, 2.0, 1.0, 0.0]))
