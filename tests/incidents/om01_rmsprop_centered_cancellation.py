"""RMSprop(centered=True) takes the root of E[g^2] - E[g]^2: for a constant gradient the
difference is 0 up to rounding, and rounding makes it negative."""

import torch
from torch import nn


def build():
    torch.manual_seed(36)
    model = nn.Linear(6, 1, bias=False)
    x = torch.randn(4, 6) * 300
    return (
        model,
        torch.optim.RMSprop(model.parameters(), 1e-6, alpha=0.1, centered=True, eps=1e-8),
        None,
        [{"x": x} for _ in range(30)],
    )


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return outputs.mean()
