"""The rotary base 500000 is cast to float16 with the rest of the model: it becomes Inf, and all
frequencies but the first become 1 / Inf = 0. Nothing is non-finite, positions are lost."""

import torch
from torch import nn


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("base", torch.tensor(5e5))
        self.register_buffer("exponent", torch.arange(4) / 4)

    def forward(self, x, half):
        base = self.base.half() if half else self.base
        frequency = (1.0 / base ** self.exponent.to(base.dtype)).float()
        angle = torch.arange(x.shape[1])[:, None] * frequency
        return x * angle.cos() + x.roll(1, -1) * angle.sin()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rotary = Rotary()
        self.head = nn.Linear(4, 1)

    def forward(self, x, half):
        return self.head(self.rotary(x, half))


def build():
    torch.manual_seed(314)
    model = Net()
    batches = [{"x": torch.randn(2, 5, 4), "half": k == 1} for k in range(3)]
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model(batch["x"], batch["half"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
