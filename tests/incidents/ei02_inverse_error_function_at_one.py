"""Uniform quantiles become Gaussian noise through erfinv(2u - 1). A quantile of 1 - 2**-26 rounds
to 1 in float32, where the inverse is infinite."""

import torch
from torch import nn


class Gaussianise(nn.Module):
    def forward(self, u):
        return torch.erfinv(2 * u - 1) * 2**0.5


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.noise = nn.Linear(4, 3), Gaussianise()

    def forward(self, x, u):
        return self.embed(x) + 0.1 * self.noise(u)


def build():
    torch.manual_seed(68)
    model = Noisy()
    batches = []
    for k in range(3):
        u = torch.rand(4, 3, dtype=torch.float64) * 0.9 + 0.05
        if k == 1:
            u[2, 1] = 1 - 2.0**-26
        batches.append({"x": torch.randn(4, 4), "u": u.float()})
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model(batch["x"], batch["u"])


def loss(outputs, batch):
    return outputs.pow(2).mean()
