"""Gradient reversal with lambda = p / (1 - p); at p = 1 it is Inf, and only backward reads it."""

import math

import torch
from torch import nn

class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lam):
        ctx.lam = lam
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -ctx.lam * g, None


class GRL(nn.Module):
    def forward(self, x, lam):
        return Reverse.apply(x, lam)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.grl = GRL()
        self.head = nn.Linear(4, 1)

    def forward(self, x, lam):
        return self.head(self.grl(self.body(x), lam))


def build():
    torch.manual_seed(52)
    model = Net()
    batches = [{"x": torch.randn(4, 3), "lam": v} for v in (0.0, 1.0, math.inf)]
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, batches


def forward(model, batch):
    return model(batch["x"], batch["lam"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
