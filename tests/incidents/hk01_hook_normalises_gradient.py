"""A user's tensor hook rescales the gradient of a frozen-in branch to unit norm; in one step the
branch is switched off, its gradient is exactly 0 and the hook returns 0/0."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(3, 4)
        self.side = nn.Linear(4, 1)
        self.main = nn.Linear(4, 1)

    def forward(self, x, weight):
        hidden = torch.tanh(self.trunk(x))
        branch = hidden * 1.0
        branch.register_hook(lambda gradient: gradient / gradient.norm())
        return self.main(hidden) + weight * self.side(branch)


def build():
    torch.manual_seed(20)
    model = Net()
    batches = [{"x": torch.randn(4, 3), "weight": w} for w in (1.0, 0.5, 0.0, 1.0)]
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model(batch["x"], batch["weight"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
