"""The forward algorithm of a hidden Markov model: a state that cannot be reached yet has
logsumexp of nothing but -inf, whose derivative is NaN although the loss is finite."""

import torch
from torch import nn


class Hmm(nn.Module):
    def __init__(self):
        super().__init__()
        self.emit = nn.Linear(3, 3)
        t = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]])
        self.register_buffer("table", t)

    def forward(self, x):
        step = self.table.log()
        e = self.emit(x).log_softmax(-1)
        a = torch.tensor([0.0, float("-inf"), float("-inf")]) + e[:, 0]
        for t in range(1, x.shape[1]):
            a = torch.logsumexp(a[:, :, None] + step, 1) + e[:, t]
        return torch.logsumexp(a, -1)


def build():
    torch.manual_seed(4)
    model = Hmm()
    return (
        model,
        torch.optim.Adam(model.parameters(), 1e-3),
        None,
        [{"x": torch.randn(2, 4, 3)} for _ in range(2)],
    )


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return -outputs.mean()
