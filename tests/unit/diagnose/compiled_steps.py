"""Steps whose result depends on the compile backend, or whose state does."""

from __future__ import annotations

import torch
from torch import nn

from workbench.step.protocol import TrainingStep


class Normalise(nn.Module):
    """A norm with its statistics in float16: eps is lost when every op rounds its result."""

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        return centred * torch.rsqrt(x.var(-1, keepdim=True) + 1e-9)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6, dtype=torch.float16))
        self.norm = Normalise()

    def forward(self, x):
        return self.norm(x) * self.scale


class HalfNorm(TrainingStep):
    """Eager code gives NaN; inductor keeps the middle values in float32 and gives zero."""

    def build_model(self):
        return Net()

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def forward(self, model, batch):
        return model(batch["x"])

    def loss(self, outputs, batch):
        return outputs.float().square().mean()


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(8, 8)
        self.angles = torch.arange(8.0)  # a plain attribute: .half() does not reach it
        self.register_buffer("table", torch.ones(8), persistent=False)

    def forward(self, x):
        return self.proj(x) * self.angles.to(x.dtype) * self.table


class HalfCached(HalfNorm):
    """A model cast to bfloat16 whose cache stayed in float32, with a loss of log zero."""

    def build_model(self):
        return Cached().bfloat16()

    def loss(self, outputs, batch):
        return outputs.float().mean() + torch.log(outputs.float().mean() * 0.0)


class Dropped(TrainingStep):
    """Finite loss under dropout in a module of torch's own; the gradient of sqrt at 0 is NaN."""

    def build_model(self):
        return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def forward(self, model, batch):
        return model(batch["x"])

    def loss(self, outputs, batch):
        return outputs.square().sum() + torch.sqrt((outputs * 0.0).square().sum())


class TwoPhases(Dropped):
    """Only the loss of the second phase fails."""

    phases = ("first", "second")

    def forward(self, model, batch, phase):
        return model(batch["x"])

    def loss(self, outputs, batch, phase):
        return outputs.square().sum() + (torch.log(outputs[0, 0] * 0) if phase == "second" else 0)


class WrongOnLarge(nn.Module):
    """Hands its input on; a wrong backend in the tests makes what is large NaN."""

    def forward(self, x):
        return torch.tanh(x)


class Accumulates(Dropped):
    """The last of three micro-batches has a log of zero in its loss."""

    def build_model(self):
        return nn.Sequential(nn.Linear(4, 4), WrongOnLarge(), nn.Linear(4, 3))

    def loss(self, outputs, batch):
        return outputs.square().mean() + torch.log(batch["w"]).mean()
