"""HEALTHY: a probe's scale gets a NaN gradient in every step (the root of 0), but no optimizer
holds it: no update uses it, and loss and all trained weights stay finite."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.head = nn.Linear(4, 1)
        self.probe = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return self.head(torch.tanh(self.body(x))) + torch.sqrt(self.probe * 0.0)


def build():
    torch.manual_seed(405)
    model = Net()
    trained = [*model.body.parameters(), *model.head.parameters()]
    return model, torch.optim.SGD(trained, 1e-2), None, [{"x": torch.randn(4, 3)} for _ in range(3)]


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
