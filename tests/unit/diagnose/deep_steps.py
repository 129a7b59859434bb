"""Deep models that go bad in one block, recorded as real bundles."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch
from torch import nn

from workbench.errors import NonFiniteError
from workbench.evidence import find_bundles
from workbench.record import Policy, Recorder
from workbench.step.protocol import Autocast, TrainingStep

WIDTH = 8


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.mix(x).tanh()


class Mlp(nn.Module):
    """Born here when ``bad`` is one of the ways below."""

    def __init__(self, bad: str | None) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)
        self.bad = bad

    def forward(self, x):
        h = self.up(x)
        if self.bad == "forward":
            h = h + torch.log(h - h - 1.0)
        if self.bad == "gradient":
            h = h + torch.sqrt((h * 0.0).square())
        if self.bad == "dropped":  # non-finite, and cut off again by the block below
            h = torch.cat([h, torch.log(h[:, :1] * 0.0 - 1.0)], dim=1)
        if self.bad == "large":
            h = torch.matmul(h * 0.0 + 300.0, torch.eye(WIDTH) * 300.0) * 1e-4
        return h


class Block(nn.Module):
    def __init__(self, bad: str | None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = Mlp(bad)

    def forward(self, x):
        x = x[:, :WIDTH]
        x = x + self.attention(self.norm(x))
        h = self.mlp(x)
        return h if h.shape[1] > WIDTH else x + h


class Stack(nn.Module):
    def __init__(self, blocks: int, bad: dict[int, str]) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList([Block(bad.get(i)) for i in range(blocks)])
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x, mask=None):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, :WIDTH])


class DeepStep(TrainingStep):
    """A stack of blocks, some of which are bad."""

    def __init__(self, blocks: int = 8, half: bool = False, **bad: str) -> None:
        self.blocks = blocks
        self.bad = {int(name[1:]): how for name, how in bad.items()}
        if half:
            self.autocast = Autocast("float16", device_type="cpu")

    def build_model(self):
        return Stack(self.blocks, self.bad)

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def forward(self, model, batch):
        return model(batch["x"])

    def loss(self, outputs, batch):
        return nn.functional.mse_loss(outputs.float(), batch["y"])


def recorded(step: TrainingStep, directory: Path, capture: str | None = None) -> Path:
    """Run one step under the recorder and return its bundle."""
    torch.manual_seed(0)
    model = step.build_model()
    recorder = Recorder(
        step,
        model,
        step.build_optimizer(model),
        directory=directory,
        run_id="deep",
        policy=Policy(recovery_every=1),
    )
    batch = {"x": torch.randn(4, WIDTH), "y": torch.zeros(4, 2)}
    with contextlib.suppress(NonFiniteError):
        recorder.train_step(batch, capture=capture)
    return find_bundles(directory)[0]
