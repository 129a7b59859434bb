"""A diffusion loss weights samples with a table that lives in the training script, neither
parameter nor buffer nor batch: 1 / alpha_bar is Inf at its last entry, which one batch draws."""

import torch
from torch import nn

TABLE = 1 / torch.linspace(1, 0, 9)


def build():
    torch.manual_seed(52)
    model = nn.Sequential(nn.Linear(3, 6), nn.SiLU(), nn.Linear(6, 3))
    batches = [
        {"x": torch.randn(4, 3), "t": torch.tensor([0, 1, 4, last]), "eps": torch.randn(4, 3)}
        for last in (2, 8, 5)
    ]
    return model, torch.optim.AdamW(model.parameters(), 1e-3), None, batches


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    weight = TABLE.index_select(0, batch["t"])
    return (weight[:, None] * (outputs - batch["eps"]).pow(2)).mean()
