"""Two heads break in the same step and independently: one takes log(0), the other 0/0."""

import torch
from torch import nn


class LogHead(nn.Module):
    def forward(self, x):
        return torch.log(x)


class RatioHead(nn.Module):
    def forward(self, x):
        return x / x.sum(-1, keepdim=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Sequential(nn.Linear(3, 2), nn.Hardtanh(0.0, 9.0), LogHead())
        self.right = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), RatioHead())

    def forward(self, x, z):
        return self.left(x).mean(-1), self.right(z)[:, 0]


def build():
    torch.manual_seed(57)
    model = Net()
    with torch.no_grad():
        for branch in (model.left, model.right):
            branch[0].weight.abs_()
            branch[0].bias.fill_(0.2)
    batches = []
    for k in range(3):
        x, z = torch.rand(4, 3), torch.rand(4, 3)
        if k == 1:
            x[1], z[3] = -9.0, -9.0
        batches.append({"x": x, "z": z})
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, batches


def forward(model, batch):
    return model(batch["x"], batch["z"])


def loss(outputs, batch):
    left, right = outputs
    return (left - 1).pow(2).mean() + (right - 1).pow(2).mean()
