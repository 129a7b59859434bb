"""HEALTHY: a prototype network's distances are 0 where a sample is its own prototype; cdist's
backward gives 0 there."""

import torch
from torch import nn


class Prototypes(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(3, 2)

    def forward(self, x, support):
        return torch.cdist(self.embed(x), self.embed(support))


def build():
    torch.manual_seed(101)
    model = Prototypes()
    batches = []
    for _ in range(3):
        x = torch.randn(5, 3)
        batches.append({"x": x, "support": x[:2].clone()})
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model(batch["x"], batch["support"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
