"""Tokens are counted in float16: 70,000 ones sum to Inf, the loss divided by it becomes 0.
Nothing is non-finite, the step silently does nothing."""

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(5, 2)
        self.head = nn.Linear(2, 1)

    def forward(self, ids):
        return self.head(self.emb(ids)).squeeze(-1)


def build():
    torch.manual_seed(29)
    model = Tagger()
    batches = [
        {"ids": torch.arange(n) % 5, "keep": torch.ones(n, dtype=torch.float16)}
        for n in (20_000, 70_000, 30_000)
    ]
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model(batch["ids"])


def loss(outputs, batch):
    return ((outputs - 1).pow(2) * batch["keep"].float()).sum() / batch["keep"].sum()
