"""Segmentation labels use 255 for 'void' and the loss was not told: a target outside the classes
raises in the loss."""

import torch
import torch.nn.functional as F
from torch import nn


def build():
    torch.manual_seed(35)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1))
    batches = []
    for k in range(3):
        label = torch.randint(0, 3, (2, 4, 4))
        if k == 1:
            label[0, 1, 2] = 255
        batches.append({"x": torch.randn(2, 2, 4, 4), "label": label})
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return F.cross_entropy(outputs, batch["label"])
