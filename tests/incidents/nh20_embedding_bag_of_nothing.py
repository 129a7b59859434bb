"""HEALTHY: EmbeddingBag with mode 'mean' gives 0 for an empty bag, not 0/0."""

import torch
from torch import nn


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(8, 3, mode="mean")
        self.head = nn.Linear(3, 1)

    def forward(self, ids, offsets):
        return self.head(self.bag(ids, offsets))


def build():
    torch.manual_seed(318)
    model = Bag()
    batches = [{"ids": torch.tensor([1, 4, 5]), "offsets": torch.tensor([0, 2, 2])}] * 3
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model(batch["ids"], batch["offsets"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
