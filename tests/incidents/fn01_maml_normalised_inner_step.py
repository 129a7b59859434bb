"""MAML with torch.func: the inner step follows the normalised gradient g / |g|, and for one task
the inner loss is exactly 0, so g is."""

import torch
from torch import nn
from torch.func import functional_call, grad


class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 1) * 0.3)

    def forward(self, x):
        return x @ self.weight


def build():
    torch.manual_seed(16)
    model = Learner()
    batches = []
    for k in range(3):
        x = torch.randn(4, 3)
        support = torch.zeros(4, 3) if k == 1 else torch.randn(4, 3)
        target = torch.zeros(4, 1) if k == 1 else torch.randn(4, 1)
        batches.append({"support": support, "target": target, "x": x, "y": torch.randn(4, 1)})
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    params = dict(model.named_parameters())

    def inner(values):
        out = functional_call(model, values, (batch["support"],))
        return (out - batch["target"]).pow(2).mean()

    gradient = grad(inner)(params)
    adapted = {}
    for name, value in params.items():
        g = gradient[name]
        adapted[name] = value - 0.1 * g / g.pow(2).sum().sqrt()
    return functional_call(model, adapted, (batch["x"],))


def loss(outputs, batch):
    return (outputs - batch["y"]).pow(2).mean()
