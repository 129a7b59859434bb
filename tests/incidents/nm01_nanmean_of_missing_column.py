"""Multi-task regression with missing targets uses nanmean over the samples of each task; one task
has no target in this batch, so its mean is 0/0."""

import torch
from torch import nn


def build():
    torch.manual_seed(54)
    model = nn.Linear(3, 2)
    batches = []
    for k in range(3):
        known = torch.ones(5, 2, dtype=torch.bool)
        known[0, 0] = known[3, 1] = False
        if k == 1:
            known[:, 1] = False
        batches.append({"x": torch.randn(5, 3), "y": torch.randn(5, 2), "known": known})
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    error = (outputs - batch["y"]).pow(2).masked_fill(~batch["known"], float("nan"))
    return error.nanmean(0).sum()
