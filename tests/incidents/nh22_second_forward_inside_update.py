"""HEALTHY: sharpness-aware minimisation with a second forward and backward inside the update, and
a dropped -Inf mask in both."""

import torch
import torch.nn.functional as F
from torch import nn


def build():
    torch.manual_seed(320)
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4))
    batches = [{"x": torch.randn(5, 3), "y": torch.randint(0, 3, (5,))} for _ in range(3)]
    return model, torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9), None, batches


def forward(model, batch):
    forward.batch = batch
    out = model(batch["x"])
    return out.masked_fill(torch.arange(4) == 3, float("-inf"))


def loss(outputs, batch):
    return F.cross_entropy(outputs, batch["y"])


def STEP(k, model, opt, scaler):
    batch = forward.batch
    old = [p.detach().clone() for p in model.parameters()]
    with torch.no_grad():
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        for p in model.parameters():
            p.add_(0.05 * p.grad / (norm + 1e-12))
    opt.zero_grad()
    loss(forward(model, batch), batch).backward()
    with torch.no_grad():
        for p, value in zip(model.parameters(), old, strict=True):
            p.copy_(value)
    opt.step()
