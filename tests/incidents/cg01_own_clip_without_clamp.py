"""An own clipping rule rescales every gradient to norm 1 by 1 / |g|; a step whose loss is masked
out has no gradient, and Inf times 0 is NaN."""

import torch
from torch import nn


def build():
    torch.manual_seed(302)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    batches = [{"x": torch.randn(4, 3), "w": w} for w in (1.0, 0.5, 0.0, 1.0)]
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return batch["w"] * (outputs - 1).pow(2).mean()


def STEP(k, model, opt, scaler):
    gradients = [p.grad for p in model.parameters()]
    total = torch.cat([g.flatten() for g in gradients]).norm()
    factor = 1.0 / total
    for g in gradients:
        g.mul_(factor)
    opt.step()
