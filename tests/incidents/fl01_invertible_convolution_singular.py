"""Normalising flow: after pruning, the 1x1 invertible convolution is singular, so the log-
determinant of the change of variables is -Inf."""

import torch
import torch.nn.functional as F
from torch import nn


class InvertibleConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linalg.qr(torch.randn(3, 3))[0])

    def forward(self, x):
        log_det = torch.linalg.slogdet(self.weight).logabsdet * x.shape[2] * x.shape[3]
        return F.conv2d(x, self.weight[:, :, None, None]), log_det


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList([InvertibleConv(), InvertibleConv()])

    def forward(self, x):
        total = x.new_zeros(())
        for step in self.steps:
            x, log_det = step(x)
            total = total + log_det
        return x, total


def build():
    torch.manual_seed(50)
    model = Flow()
    return (
        model,
        torch.optim.Adam(model.parameters(), 1e-3),
        None,
        [{"x": torch.randn(2, 3, 4, 4)} for _ in range(3)],
    )


def PRE_STEP(k, model, opt, scaler):
    if k == 1:
        with torch.no_grad():
            model.steps[1].weight[2] = 0.0


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    z, log_det = outputs
    return 0.5 * z.pow(2).sum((1, 2, 3)).mean() - log_det
