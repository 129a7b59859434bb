"""One feature of a sequence is Inf. The gates of the LSTM saturate, so that outputs and loss are
finite; its backward multiplies the saved feature with derivatives that are exactly 0."""

import math

import torch
from torch import nn


def build():
    torch.manual_seed(15)
    model = nn.LSTM(2, 3, batch_first=True)
    xs = [torch.randn(2, 4, 2) for _ in range(3)]
    xs[1][0, 2, 1] = math.inf
    return model, torch.optim.SGD(model.parameters(), 1e-4), None, [{"x": x} for x in xs]


def forward(model, batch):
    return model(batch["x"])[0]


def loss(outputs, batch):
    return outputs.pow(2).mean()
