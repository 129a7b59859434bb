"""A hand-written cross-entropy uses xlogy so that 0 * log(0) is 0. Its value is finite; its
derivative with respect to the probability is x / y, which is 0 / 0 where both are 0."""

import torch
from torch import nn


def build():
    torch.manual_seed(67)
    model = nn.Linear(4, 3)
    xs = [torch.randn(5, 4) for _ in range(3)]
    xs[1][2] *= 1000
    batches = []
    for x in xs:
        with torch.no_grad():
            best = model(x).argmax(-1)
        batches.append({"x": x, "y": torch.eye(3)[best]})
    return model, torch.optim.SGD(model.parameters(), 1e-4), None, batches


def forward(model, batch):
    return model(batch["x"]).softmax(-1)


def loss(outputs, batch):
    return -torch.xlogy(batch["y"], outputs).sum(-1).mean()
