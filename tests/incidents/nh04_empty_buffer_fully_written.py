"""HEALTHY: an output buffer is torch.empty (filled with NaN by the deterministic mode) and every
row of it is written, by copy_, index_copy_ and an out= variant, before anything reads it."""

import torch
from torch import nn


class Assemble(nn.Module):
    def forward(self, x, order):
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)
        out, tail = torch.empty(6, 2), torch.empty(2, 2)
        torch.use_deterministic_algorithms(before)
        with torch.no_grad():
            torch.mul(x[:2], 2.0, out=tail)
            out[4:].copy_(tail)
            out.index_copy_(0, order[:4], x[:4])
        return x + out.sum()


def build():
    torch.manual_seed(102)
    model = nn.Sequential(nn.Linear(3, 2))
    model.assemble = Assemble()
    batches = [{"x": torch.randn(6, 3), "order": torch.randperm(4)} for _ in range(3)]
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, batches


def forward(model, batch):
    return model.assemble(model[0](batch["x"]), batch["order"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
