"""A radius feature hypot(y, x) inside a (non-reentrant) checkpointed block: at the origin its
value is 0, its derivative 0/0."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Polar(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(2, 2, bias=False)

    def forward(self, x):
        u, v = self.project(x).unbind(-1)
        return torch.stack([torch.hypot(v, u), u + v], -1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Polar(), nn.Linear(2, 2)])

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def build():
    torch.manual_seed(14)
    model = Net()
    xs = [torch.randn(4, 2) for _ in range(3)]
    xs[1][2] = 0.0
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, [{"x": x} for x in xs]


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
