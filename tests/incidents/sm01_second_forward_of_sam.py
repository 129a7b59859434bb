"""Sharpness-aware minimisation inside the update: weights are moved along the gradient, the loss
is taken again there, and a log meets a negative number only at the moved weights."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2, 1, bias=False)

    def forward(self, x):
        return torch.log(self.body(x))


def build():
    torch.manual_seed(226)
    model = Net()
    with torch.no_grad():
        model.body.weight.copy_(torch.tensor([[0.5, 0.5]]))
    batches = [{"x": torch.rand(4, 2) + 0.5, "rho": rho} for rho in (0.01, 0.01, 4.0, 0.01)]
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    forward.batch = batch
    return model(batch["x"])


def loss(outputs, batch):
    return outputs.mean() ** 2 - outputs.mean()


def STEP(k, model, opt, scaler):
    batch = forward.batch
    (p,) = model.parameters()
    old = p.detach().clone()
    with torch.no_grad():
        p.add_(batch["rho"] * p.grad / p.grad.norm())
    opt.zero_grad()
    loss(model(batch["x"]), batch).backward()
    with torch.no_grad():
        p.copy_(old)
    opt.step()
