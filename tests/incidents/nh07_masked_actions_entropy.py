"""HEALTHY: illegal actions get -Inf logits; log_softmax gives them -Inf, and where() keeps them
out of the entropy before anything is multiplied."""

import torch
from torch import nn


def build():
    torch.manual_seed(105)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))
    batches = []
    for _ in range(3):
        legal = torch.rand(5, 4) > 0.4
        legal[:, 1] = True
        batches.append({"x": torch.randn(5, 3), "legal": legal, "advantage": torch.randn(5)})
    return model, torch.optim.Adam(model.parameters(), 1e-3), None, batches


def forward(model, batch):
    logits = model(batch["x"]).masked_fill(~batch["legal"], float("-inf"))
    return logits.log_softmax(-1)


def loss(outputs, batch):
    safe = torch.where(batch["legal"], outputs, torch.zeros_like(outputs))
    entropy = -(outputs.exp() * safe).sum(-1)
    return -(outputs[:, 1] * batch["advantage"] + 0.01 * entropy).mean()
