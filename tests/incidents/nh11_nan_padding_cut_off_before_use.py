"""HEALTHY: sequences are padded with NaN, and the padded positions are indexed away before the
first layer."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(2, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, x, lengths):
        sequences = [row[:n] for row, n in zip(x, lengths.tolist(), strict=True)]
        packed = pack_sequence(sequences, enforce_sorted=False)
        return self.head(self.gru(packed)[1][0])


def build():
    torch.manual_seed(109)
    model = Encoder()
    batches = []
    for n in (2, 3, 1):
        x = torch.randn(3, 5, 2)
        x[1, n:], x[2, 4:] = float("nan"), float("nan")
        batches.append({"x": x, "lengths": torch.tensor([5, n, 4])})
    return model, torch.optim.Adam(model.parameters(), 1e-3), None, batches


def forward(model, batch):
    return model(batch["x"], batch["lengths"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
