"""A two-dimensional table is read through a flat index kept in int16 to save memory: row * width
wraps around to a negative number, which is outside of the table."""

import torch
from torch import nn


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.values = nn.Parameter(torch.randn(200 * 200))

    def forward(self, row, column):
        flat = row * 200 + column
        return self.values.index_select(0, flat.int())


def build():
    torch.manual_seed(66)
    model = Table()
    rows = [torch.tensor(r, dtype=torch.int16) for r in ([1, 20], [100, 199], [3, 4])]
    columns = torch.tensor([5, 199], dtype=torch.int16)
    batches = [{"row": r, "column": columns} for r in rows]
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model(batch["row"], batch["column"])


def loss(outputs, batch):
    return outputs.pow(2).mean()
