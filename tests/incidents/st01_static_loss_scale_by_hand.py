"""Loss scaling by hand: the loss is multiplied by 2^20 under float16 autocast and gradients are
divided again before the update. Nothing checks for Inf in between."""

import torch
from torch import nn

AUTOCAST = {"dtype": torch.float16}
SCALE = 2.0**20


def build():
    torch.manual_seed(218)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    xs = [torch.randn(6, 4) * 1e-2 for _ in range(3)]
    with torch.no_grad():
        model[2].bias.fill_(1.0)
    xs[2] *= 3e3
    return model, torch.optim.SGD(model.parameters(), 1e-4), None, [{"x": x} for x in xs]


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs.float() - 1).pow(2).mean() * SCALE


def POST_BACKWARD(k, model):
    for p in model.parameters():
        p.grad.div_(SCALE)
