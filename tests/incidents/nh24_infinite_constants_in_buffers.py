"""HEALTHY: buffers hold Inf by design: a running minimum that starts at +Inf, a maximum at -Inf,
and an additive mask. They change, but only towards finite."""

import torch
from torch import nn


class Observer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("low", torch.full((4,), float("inf")))
        self.register_buffer("high", torch.full((4,), float("-inf")))

    def forward(self, x):
        rows = x.detach()
        self.low.copy_(torch.minimum(self.low, rows.amin(0)))
        self.high.copy_(torch.maximum(self.high, rows.amax(0)))
        return x / (self.high - self.low + 1e-3)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.observer = Observer()
        mask = torch.full((4, 4), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        x = self.observer(self.body(x))
        return (x @ x.T + self.mask).softmax(-1) @ x


def build():
    torch.manual_seed(406)
    model = Net()
    return (
        model,
        torch.optim.SGD(model.parameters(), 1e-2),
        None,
        [{"x": torch.randn(4, 3)} for _ in range(3)],
    )


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
