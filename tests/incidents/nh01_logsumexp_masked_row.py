"""HEALTHY: a CRF partition function over a fully masked state set is -Inf; where() drops it from
the loss, and logsumexp's own backward handles an infinite result."""

import torch
from torch import nn


class Emissions(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(3, 4)

    def forward(self, x, allowed):
        masked = self.score(x).masked_fill(~allowed, float("-inf"))
        return torch.logsumexp(masked, -1)


def build():
    torch.manual_seed(31)
    model = Emissions()
    batches = []
    for k in range(3):
        allowed = torch.rand(5, 4) > 0.3
        allowed[:, 0] = True
        if k == 2:
            allowed[4] = False
        batches.append({"x": torch.randn(5, 3), "allowed": allowed})
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model(batch["x"], batch["allowed"])


def loss(outputs, batch):
    return torch.where(batch["allowed"].any(-1), outputs, torch.zeros_like(outputs)).mean()
