"""A running count is kept in bfloat16. From 256 on, adding 1 does not change it, so that the growth
between two steps, whose logarithm is taken, becomes 0."""

import torch
from torch import nn


class Novelty(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.tensor(254.0, dtype=torch.bfloat16))

    def forward(self, x):
        before = self.count.clone()
        self.count += 1
        return x * -torch.log(self.count - before).float() + x


def build():
    torch.manual_seed(65)
    model = nn.Sequential(nn.Linear(4, 4), Novelty(), nn.Linear(4, 1))
    xs = [torch.randn(6, 4) for _ in range(4)]
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, [{"x": x} for x in xs]


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return outputs.pow(2).mean()
