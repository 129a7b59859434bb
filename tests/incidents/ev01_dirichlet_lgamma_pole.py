"""Evidential learning with concentration relu(x) instead of relu(x) + 1: lgamma has a pole at
0."""

import torch
from torch import nn


class Evidence(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 3)

    def forward(self, x):
        return torch.relu(self.body(x)) + x.abs().amax(-1, keepdim=True)


def build():
    torch.manual_seed(51)
    model = nn.Sequential(Evidence())
    with torch.no_grad():
        model[0].body.bias.fill_(-0.1)
    xs = [torch.randn(4, 3) for _ in range(3)]
    xs[1][2] = 0.0
    batches = [{"x": x, "y": torch.tensor([0, 1, 2, 0])} for x in xs]
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, batches


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    log_beta = torch.lgamma(outputs).sum(-1) - torch.lgamma(outputs.sum(-1) + 1)
    return (log_beta - outputs.gather(1, batch["y"][:, None]).squeeze(1)).mean()
