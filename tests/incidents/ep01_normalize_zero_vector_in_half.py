"""functional.normalize of a zero vector in half: its eps of 1e-12 is 0 there."""

import torch
from torch import nn
from torch.nn import functional


class Head(nn.Module):
    def forward(self, x):
        return functional.normalize(x, dim=-1)


def build():
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(4, 4, bias=False), Head(), nn.Linear(4, 2)).half()
    xs = [torch.randn(3, 4).half() for _ in range(3)]
    xs[1][2] = 0
    return (
        model,
        torch.optim.SGD(model.parameters(), 1e-2),
        None,
        [{"x": x, "y": torch.tensor([0, 1, 1])} for x in xs],
    )


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return functional.cross_entropy(outputs, batch["y"])
