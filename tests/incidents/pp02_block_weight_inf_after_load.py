"""A float16 checkpoint saved an overflowed weight as Inf; ReLU clips its column in some samples,
the others are Inf - Inf two blocks later."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x):
        return x + self.fc[1](torch.relu(self.fc[0](x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def build():
    torch.manual_seed(45)
    model = Net()
    return (
        model,
        torch.optim.SGD(model.parameters(), 1e-2),
        None,
        [{"x": torch.randn(4, 4)} for _ in range(3)],
    )


def PRE_STEP(k, model, opt, scaler):
    if k == 1:
        with torch.no_grad():
            model.layers[0].fc[0].weight[1, 2] = 1e5
            model.layers[0].fc[0].weight.copy_(model.layers[0].fc[0].weight.half().float())


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
