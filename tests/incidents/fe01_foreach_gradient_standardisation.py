"""The loop divides every gradient by its own norm with _foreach ops before the update; the bias
of a dead ReLU unit's layer has no gradient at all."""

import torch
from torch import nn


def build():
    torch.manual_seed(21)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    xs = [torch.rand(5, 3) for _ in range(3)]
    with torch.no_grad():
        model[0].weight.abs_()
        model[0].bias.fill_(0.1)
    xs[1] = -10 * xs[1] - 1
    return model, torch.optim.SGD(model.parameters(), 1e-4), None, [{"x": x} for x in xs]


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()


def POST_BACKWARD(k, model):
    gradients = [p.grad for p in model.parameters()]
    torch._foreach_div_(gradients, torch._foreach_norm(gradients))
