"""A weight-normalised adapter (as DoRA keeps it) is pruned: a whole row of the direction becomes
0, and g * v / |v| is 0/0 inside the fused op."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(4, 4)
        self.adapter = weight_norm(nn.Linear(4, 4, bias=False))

    def forward(self, x):
        return self.base(x) + self.adapter(x)


def build():
    torch.manual_seed(13)
    model = Adapted()
    batches = [{"x": torch.randn(5, 4)} for _ in range(3)]
    return model, torch.optim.SGD(model.adapter.parameters(), 1e-2), None, batches


def PRE_STEP(k, model, opt, scaler):
    if k == 1:
        with torch.no_grad():
            model.adapter.parametrizations.weight.original1[2] = 0.0


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
