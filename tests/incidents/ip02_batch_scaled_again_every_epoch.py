"""One cached batch is used for every step and scaled in place each time (x.mul_(1e12)): in the
fourth epoch it leaves float32."""

import torch
from torch import nn


class Scale(nn.Module):
    def forward(self, x):
        return x.mul_(1e12)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = Scale()
        self.head = nn.Linear(3, 1)

    def forward(self, x):
        return torch.tanh(self.head(self.scale(x)))


def build():
    torch.manual_seed(403)
    model = Net()
    batch = {"x": torch.rand(4, 3) + 0.5}
    return model, torch.optim.SGD(model.parameters(), 1e-40), None, [batch] * 5


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
