"""HEALTHY: the model also returns a log-magnitude map for inspection, with -Inf and a 0/0 in it;
nothing in the loss reads it."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        hidden = torch.relu(self.body(x))
        share = hidden / hidden.sum(-1, keepdim=True)
        return {"out": self.head(hidden), "log_map": hidden.log(), "share": share.detach()}


def build():
    torch.manual_seed(114)
    model = Net()
    with torch.no_grad():
        model.body.weight.abs_()
    batches = [{"x": torch.randn(5, 3) * 3} for _ in range(3)]
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, batches


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs["out"] - 1).pow(2).mean()
