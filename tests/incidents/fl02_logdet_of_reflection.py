"""A flow takes torch.logdet of its linear layer: once the determinant is negative the
logarithm is NaN."""

import torch
from torch import nn


class Mix(nn.Module):
    def __init__(self):
        super().__init__()
        w = torch.linalg.qr(torch.randn(3, 3))[0]
        if torch.det(w) > 0:
            w[0] *= -1
        self.weight = nn.Parameter(w)

    def forward(self, x):
        return x @ self.weight, torch.logdet(self.weight)


def build():
    torch.manual_seed(15)
    model = Mix()
    return (
        model,
        torch.optim.Adam(model.parameters(), 1e-3),
        None,
        [{"x": torch.randn(4, 3)} for _ in range(2)],
    )


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    z, ld = outputs
    return (0.5 * z.pow(2).sum(1)).mean() - ld
