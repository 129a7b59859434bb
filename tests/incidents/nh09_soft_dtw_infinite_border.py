"""HEALTHY: soft-DTW borders its table with +Inf, the neutral element of min; the soft minimum
gives those cells weight exp(-Inf) = 0."""

import torch
from torch import nn


def build():
    torch.manual_seed(107)
    model = nn.GRU(2, 2, batch_first=True)
    batches = [{"x": torch.randn(1, 4, 2), "y": torch.randn(5, 2)} for _ in range(3)]
    return model, torch.optim.Adam(model.parameters(), 1e-3), None, batches


def forward(model, batch):
    return model(batch["x"])[0][0]


def loss(outputs, batch):
    cost = (outputs[:, None] - batch["y"][None]).pow(2).sum(-1)
    border = torch.tensor(float("inf"))
    rows, columns = cost.shape
    table = {(0, 0): torch.zeros(())}
    for i in range(1, rows + 1):
        for j in range(1, columns + 1):
            near = [(i - 1, j), (i, j - 1), (i - 1, j - 1)]
            near = torch.stack([table.get(cell, border) for cell in near])
            table[i, j] = cost[i - 1, j - 1] - torch.logsumexp(-near, 0)
    return table[rows, columns] / (rows + columns)
