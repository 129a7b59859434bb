"""A covariance is turned into a correlation in place: its rows and columns are divided by the
root of the diagonal, read through a strided view; one feature is constant."""

import torch
from torch import nn


class Correlation(nn.Module):
    def forward(self, x):
        centred = x - x.mean(0)
        out = centred.T @ centred / len(x)
        scale = out.diagonal().detach().sqrt().clone()
        out.div_(scale[:, None])
        out.div_(scale[None, :])
        return out


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(3, 3, bias=False)
        self.correlation = Correlation()

    def forward(self, x):
        return self.correlation(self.mix(x))


def build():
    torch.manual_seed(305)
    model = Net()
    with torch.no_grad():
        model.mix.weight.copy_(torch.eye(3))
    xs = [torch.randn(6, 3) for _ in range(3)]
    xs[0][:, 2] = 2.0
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, [{"x": x} for x in xs]


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - torch.eye(3)).pow(2).mean()
