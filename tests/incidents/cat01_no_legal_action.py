"""Categorical(logits) normalises by logsumexp: in a terminal state every action is illegal, so it
computes -Inf - -Inf and then refuses its own result."""

import torch
from torch import nn
from torch.distributions import Categorical


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = nn.Linear(3, 4)

    def forward(self, x, legal):
        return self.logits(x).masked_fill(~legal, float("-inf"))


def build():
    torch.manual_seed(308)
    model = Policy()
    batches = []
    for k in range(3):
        legal = torch.ones(4, 4, dtype=torch.bool)
        legal[0, 2:] = False
        if k == 1:
            legal[3] = False
        batches.append({"x": torch.randn(4, 3), "legal": legal, "a": torch.tensor([0, 1, 2, 3])})
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model(batch["x"], batch["legal"])


def loss(outputs, batch):
    return -Categorical(logits=outputs).log_prob(batch["a"]).mean()
