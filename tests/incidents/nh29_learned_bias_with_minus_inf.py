"""HEALTHY: a trainable attention bias holds -Inf where attention is forbidden."""

import math

import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)
        bias = torch.zeros(4, 4)
        bias[0, 1:] = -math.inf
        bias[1, 2:] = -math.inf
        self.rel = nn.Parameter(bias)

    def forward(self, x):
        h = self.fc(x)
        return (h @ h.T + self.rel).softmax(-1) @ h


def build():
    torch.manual_seed(107)
    model = Net()
    return model, torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.01), None, [{"x": torch.randn(4, 3)} for _ in range(3)]


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
