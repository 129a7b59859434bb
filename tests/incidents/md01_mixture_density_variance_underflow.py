"""Mixture density network: log sigma = -60, so sigma^2 = exp(-120) underflows to 0 in float32 and
the squared error is divided by 0."""

import torch
from torch import nn


class MDN(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2, 9)

    def forward(self, x):
        weight, mean, log_sigma = self.body(x).chunk(3, -1)
        return weight.log_softmax(-1), mean, log_sigma


def build():
    torch.manual_seed(53)
    model = MDN()
    with torch.no_grad():
        model.body.weight[6:] = 1.0
    xs = [torch.randn(4, 2) for _ in range(3)]
    xs[2][1] = -30.0
    batches = [{"x": x, "y": torch.randn(4, 1)} for x in xs]
    return model, torch.optim.SGD(model.parameters(), 1e-6), None, batches


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    log_weight, mean, log_sigma = outputs
    variance = torch.exp(log_sigma).pow(2)
    log_prob = -0.5 * (batch["y"] - mean).pow(2) / variance - log_sigma
    return -(log_weight + log_prob).mean()
