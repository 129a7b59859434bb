"""A Gaussian process layer factorises its kernel matrix without jitter: two equal inputs make it
singular and linalg.cholesky raises."""

import torch
from torch import nn


class Kernel(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_length = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        square = (x[:, None] - x[None]).pow(2).sum(-1)
        return torch.exp(-0.5 * square / self.log_length.exp()) - 1e-6 * torch.eye(len(x))


class GP(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = Kernel()

    def forward(self, x):
        return torch.linalg.cholesky(self.kernel(x))


def build():
    torch.manual_seed(60)
    model = GP()
    batches = []
    for k in range(3):
        x = torch.randn(5, 2) * 3
        if k == 2:
            x[4] = x[3]
        batches.append({"x": x, "y": torch.randn(5, 1)})
    return model, torch.optim.Adam(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    alpha = torch.linalg.solve_triangular(outputs, batch["y"], upper=False)
    return 0.5 * alpha.pow(2).sum() + outputs.diagonal().log().sum()
