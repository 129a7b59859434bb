"""A recurrent layer with straight-through clipping, unrolled 80 times: forward is bounded,
the gradient grows fourfold with every step back."""

import torch
from torch import nn
from torch.nn import functional


class Rnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(4, 4, bias=False)
        with torch.no_grad():
            self.w.weight.copy_(4 * torch.eye(4))

    def forward(self, x, steps):
        h = x
        for _ in range(steps):
            z = self.w(h)
            h = z + (z.clamp(-1, 1) - z).detach()
        return h


def build():
    torch.manual_seed(2)
    model = Rnn()
    return (
        model,
        torch.optim.SGD(model.parameters(), 1e-12),
        None,
        [{"x": torch.randn(2, 4), "n": n, "y": torch.randn(2, 4)} for n in (4, 80, 4)],
    )


def forward(model, batch):
    return model(batch["x"], batch["n"])


def loss(outputs, batch):
    return functional.mse_loss(outputs, batch["y"])
