"""A linear recurrence with spectral radius 1.6 runs over one sequence of 400 steps instead of 20:
the hidden state leaves float32 inside a single forward."""

import torch
from torch import nn


class LinearRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(2, 4)
        self.rec = nn.Linear(4, 4, bias=False)
        self.out = nn.Linear(4, 1)
        with torch.no_grad():
            self.rec.weight.copy_(1.6 * torch.eye(4))

    def forward(self, x):
        hidden = self.inp(x[:, 0])
        for t in range(1, x.shape[1]):
            hidden = self.rec(hidden) + 0.01 * self.inp(x[:, t])
        return self.out(hidden)


def build():
    torch.manual_seed(5)
    model = LinearRNN()
    batches = [{"x": torch.randn(3, n, 2)} for n in (10, 10, 400, 10)]
    return model, torch.optim.SGD(model.parameters(), 1e-12), None, batches


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs / 1e3).pow(2).mean()
