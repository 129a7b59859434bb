"""HEALTHY: a table is filled with log counts (log 0 = -Inf in empty cells, 0/0 in a row), and
those cells are overwritten by a prior before anything reads them."""

import torch
from torch import nn


class Prior(nn.Module):
    def forward(self, x, counts):
        with torch.no_grad():
            table = (counts / counts.sum(1, keepdim=True)).log()
            table[:, 0] = -1.0
            table[counts.sum(1) == 0] = -2.0
            table[counts == 0] = -3.0
        return x + table


def build():
    torch.manual_seed(317)
    model = nn.ModuleDict({"fc": nn.Linear(3, 4), "prior": Prior()})
    batches = []
    for _ in range(3):
        counts = torch.randint(0, 3, (5, 4)).float()
        counts[2] = 0
        batches.append({"x": torch.randn(5, 3), "counts": counts})
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model["prior"](model["fc"](batch["x"]), batch["counts"])


def loss(outputs, batch):
    return -outputs.log_softmax(-1)[:, 1].mean()
