"""Binary cross-entropy by hand in bfloat16: p = 0.999 rounds to 1, so log(1 - p) is log(0)
although float32 would give -6.9."""

import torch
from torch import nn


def build():
    torch.manual_seed(49)
    model = nn.Linear(3, 1).bfloat16()
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.zero_()
    xs = [torch.rand(4, 3).bfloat16() for _ in range(3)]
    xs[2][1] = 2.3
    y = torch.tensor([[0.0], [0.0], [1.0], [1.0]]).bfloat16()
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, [{"x": x, "y": y} for x in xs]


def forward(model, batch):
    return torch.sigmoid(model(batch["x"]))


def loss(outputs, batch):
    y = batch["y"]
    return -(y * torch.log(outputs) + (1 - y) * torch.log(1 - outputs)).mean()
