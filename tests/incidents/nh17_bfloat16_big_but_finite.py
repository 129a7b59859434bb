"""HEALTHY: activations of 1e30 in bfloat16 pass a LayerNorm that computes in float32 and come out
as ordinary numbers."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(3, 4)
        self.norm = nn.LayerNorm(4)
        self.out = nn.Linear(4, 1)

    def forward(self, x):
        hidden = self.inp(x)
        scale = hidden.detach().abs().amax(-1, keepdim=True)
        return self.out(self.norm((hidden / scale).float()).bfloat16())


def build():
    torch.manual_seed(115)
    model = Net().bfloat16()
    model.norm.float()
    xs = [torch.randn(4, 3).bfloat16() for _ in range(3)]
    xs[1][2] *= 1e30
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, [{"x": x} for x in xs]


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs.float() - 1).pow(2).mean()
