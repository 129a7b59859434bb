"""Attention scores are multiplied in float16 before they are scaled. Large ones overflow to both
infinities; the softmax makes 0 of the -Inf and NaN of the rows with a +Inf."""

import torch
from torch import nn
from torch.nn import functional

AUTOCAST = {"dtype": torch.float16}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        scores = torch.matmul(self.q(x), self.k(x).transpose(-1, -2)) / 4
        return torch.matmul(scores.float().softmax(-1), self.v(x).float())


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(8, 16), nn.Linear(16, 2)
        self.blocks = nn.ModuleList([Attention(), Attention()])

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = x + block(x)
        return self.out(x.mean(1))


def build():
    torch.manual_seed(5)
    model = Model()
    with torch.no_grad():
        model.blocks[1].q.weight.mul_(30)
        model.blocks[1].k.weight.mul_(30)
    batches = [
        {"x": torch.randn(2, 4, 8) * (0.3 if k < 2 else 9.0), "y": torch.tensor([0, 1])}
        for k in range(4)
    ]
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    return model, optimizer, torch.amp.GradScaler("cpu", init_scale=8.0), batches


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return functional.cross_entropy(outputs.float(), batch["y"])
