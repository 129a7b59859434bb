"""A GRU cell written by hand adds its hidden state twice and keeps it in half precision: it doubles
at every time step until it leaves half's range inside one long sequence."""

import torch
from torch import nn


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.inputs, self.hidden = nn.Linear(3, 12), nn.Linear(4, 12, bias=False)

    def forward(self, x, h):
        a, b = self.inputs(x).chunk(3, -1), self.hidden(h.float()).chunk(3, -1)
        z = torch.sigmoid(a[0] + b[0])
        n = torch.tanh(a[1] + torch.sigmoid(a[2] + b[2]) * b[1])
        return z.half() * n.half() + (h + h)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = Cell(), nn.Linear(4, 1)

    def forward(self, x):
        h = torch.full((x.shape[0], 4), 0.5, dtype=torch.float16)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return self.out(h.float())


def build():
    torch.manual_seed(74)
    model = Net()
    batches = [{"x": torch.randn(3, n, 3)} for n in (4, 6, 24, 4)]
    return model, torch.optim.SGD(model.parameters(), 1e-7), None, batches


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return outputs.pow(2).mean()
