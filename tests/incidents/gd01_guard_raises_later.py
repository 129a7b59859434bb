"""A depth network inverts disparity (1/0 = Inf); three modules later the user's own NaN guard
raises and names the wrong place."""

import torch
from torch import nn


class Invert(nn.Module):
    def forward(self, x):
        return x.reciprocal()


class Guard(nn.Module):
    def forward(self, x):
        if not torch.isfinite(x).all():
            raise RuntimeError("non-finite activations in the decoder")
        return x


def build():
    torch.manual_seed(33)
    model = nn.Sequential(
        nn.Linear(3, 4), nn.Hardtanh(0.0, 6.0), Invert(), nn.Linear(4, 4), Guard(), nn.Linear(4, 1)
    )
    with torch.no_grad():
        model[0].weight.abs_()
        model[0].bias.fill_(0.2)
    xs = [torch.rand(4, 3) for _ in range(3)]
    xs[1][3] = -5.0
    return model, torch.optim.SGD(model.parameters(), 1e-4), None, [{"x": x} for x in xs]


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
