"""Logits of illegal moves are -Inf, and one recorded move is illegal (a parser bug): its cross-
entropy is +Inf. The mask is intended, the label is not."""

import torch
import torch.nn.functional as F
from torch import nn


def build():
    torch.manual_seed(220)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5))
    batches = []
    for k in range(3):
        legal = torch.ones(4, 5, dtype=torch.bool)
        legal[:, 4] = False
        move = torch.tensor([0, 1, 2, 4 if k == 1 else 3])
        batches.append({"x": torch.randn(4, 4), "legal": legal, "move": move})
    return model, torch.optim.Adam(model.parameters(), 1e-3), None, batches


def forward(model, batch):
    return model(batch["x"]).masked_fill(~batch["legal"], float("-inf"))


def loss(outputs, batch):
    return F.cross_entropy(outputs, batch["move"])
