"""A small training that the workers of these tests run on every rank."""

from __future__ import annotations

import hashlib
import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from workbench.step import TrainingStep

BAD = float("nan")


class Step(TrainingStep):
    """Linear layers under a weighted mean; the batch's weights decide what becomes bad."""

    def build_model(self) -> nn.Module:
        return make_model()

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), 0.01)

    def forward(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return model(batch["x"])

    def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return (outputs * batch["w"]).mean()


class ClippedStep(Step):
    """The same with clipping."""

    max_grad_norm = 1.0


class Counting(nn.Module):
    """Adds to a buffer that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.add = 1.0
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += self.add
        return x


def make_model(norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    parts: list[nn.Module] = [nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)]
    if norm:
        parts.insert(1, nn.BatchNorm1d(8))
    return nn.Sequential(*parts)


def ddp(model: nn.Module | None = None, **more: Any) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model or make_model(), **more)


def batch(step: int, rank: int, weight: float = 1.0) -> dict[str, torch.Tensor]:
    seeded = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(6, 4, generator=seeded)
    return {"x": x, "w": torch.full((6, 3), weight)}


def digest(model: nn.Module) -> str:
    found = hashlib.sha256()
    for value in model.state_dict().values():
        found.update(value.detach().contiguous().numpy().tobytes())
    found.update(torch.get_rng_state().numpy().tobytes())
    return found.hexdigest()[:16]


def begin(timeout_s: float = 60.0) -> tuple[int, int, Path]:
    """Set up this rank; its number, how many there are, and the folder to write to."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
    return dist.get_rank(), dist.get_world_size(), Path(sys.argv[1])


def say(folder: Path, rank: int, content: dict[str, Any]) -> None:
    (folder / f"rank{rank}.json").write_text(json.dumps(content))


def records(recorder: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in recorder.ledger.path.read_text().splitlines()]
