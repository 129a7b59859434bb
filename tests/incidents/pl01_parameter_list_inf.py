"""Layer scales live in a ParameterDict of a block; one became +Inf in a damaged checkpoint."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.scales = nn.ParameterDict({"gamma": torch.ones(4), "beta": torch.zeros(4)})

    def forward(self, x):
        return x + self.scales["gamma"] * torch.tanh(self.fc(x)) + self.scales["beta"]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.blocks(x))


def build():
    torch.manual_seed(207)
    model = Net()
    batches = [{"x": torch.randn(4, 4)} for _ in range(4)]
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def PRE_STEP(k, model, opt, scaler):
    if k == 2:
        with torch.no_grad():
            model.blocks[1].scales["gamma"][3] = float("inf")


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
