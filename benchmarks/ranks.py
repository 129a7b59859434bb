"""What the recorder costs a DDP step with two gloo ranks, beside DDP with and without a scaler.

    torchrun --standalone --nproc-per-node 2 benchmarks/ranks.py [--rounds 9] [--json FILE]

All variants take turns in one pair of processes, in the same shuffled order on both ranks; the time
of a step is that of rank 0, which waits for rank 1 in every gradient reduction. ``alone`` is the
recorder without its decision and without its look before the reduction (``ranks="alone"``): the
difference to it is what ranks cost.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measuring import facts
from models import Transformer
from torch import distributed as dist
from torch import nn

from workbench.record import Policy, Recorder
from workbench.record.ranks.codes import WIDTH
from workbench.step import TrainingStep


class Mlp(TrainingStep):
    max_grad_norm = 1.0
    shape = (64, 256)

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 256)
        )

    def batch(self) -> Any:
        return {"x": torch.randn(*self.shape), "y": torch.randn(*self.shape)}

    def forward(self, model: nn.Module, batch: Any) -> Any:
        return model(batch["x"])

    def loss(self, outputs: Any, batch: Any) -> Any:
        return nn.functional.mse_loss(outputs, batch["y"])


class Language(TrainingStep):
    max_grad_norm = 1.0
    layers, width, tokens = 4, 256, 64

    def build_model(self) -> nn.Module:
        return Transformer(self.layers, self.width, 4)

    def batch(self) -> Any:
        return {"x": torch.randint(0, 1000, (4, self.tokens))}

    def forward(self, model: nn.Module, batch: Any) -> Any:
        return model(batch["x"])

    def loss(self, outputs: Any, batch: Any) -> Any:
        return nn.functional.cross_entropy(outputs.flatten(0, 1), batch["x"].flatten())


def variant(step: Any, kind: str, folder: Path) -> Callable[[], Any]:
    """One way to train a step."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(step.build_model())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0) if "scaler" in kind else None
    batch = step.batch()
    if "recorder" in kind:
        policy = Policy(ranks="alone" if "alone" in kind else "together")
        recorder = Recorder(step, model, optimizer, scaler, folder / kind, kind, policy)
        return lambda: recorder.train_step(batch)

    def bare() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = step.loss(step.forward(model, batch), batch)
        if scaler is None:
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return bare


KINDS = ("bare", "bare again", "scaler", "recorder alone", "recorder", "recorder scaler")


def measure(step: TrainingStep, rounds: int, steps: int, folder: Path) -> list[dict[str, Any]]:
    """Ratios of every variant to the bare DDP step."""
    variants = {kind: variant(step, kind, folder) for kind in KINDS}
    shuffled = random.Random(0)  # the same order on all ranks
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(rounds + 1):
        order = list(KINDS)
        shuffled.shuffle(order)
        for kind in order:
            dist.barrier()
            started = time.perf_counter()
            for _ in range(steps):
                variants[kind]()
            if number:
                times[kind].append((time.perf_counter() - started) / steps)
    rows = []
    for kind in KINDS:
        ratios = [a / b for a, b in zip(times[kind], times["bare"], strict=True)]
        rows.append(
            {
                "variant": kind,
                "ms": min(times[kind]) * 1e3,
                "med": statistics.median(ratios),
                "min": min(times[kind]) / min(times["bare"]),
            }
        )
    return rows


def collective(rounds: int) -> dict[str, float]:
    """Microseconds of the decision's all-reduce by itself."""
    row = torch.zeros(WIDTH, dtype=torch.int64)
    took = []
    for _ in range(rounds):
        started = time.perf_counter()
        dist.all_reduce(row, dist.ReduceOp.MAX)
        took.append((time.perf_counter() - started) * 1e6)
    return {"min_us": min(took), "med_us": statistics.median(took)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Any] = {"facts": facts(ranks=dist.get_world_size(), load=os.getloadavg())}
        found["all_reduce"] = collective(500)
        for name, step in (("mlp", Mlp()), ("transformer", Language())):
            place = Path(folder) / name
            found[name] = measure(step, chosen.rounds, chosen.steps, place)
    if dist.get_rank():
        return
    print(found["facts"])
    print(found["all_reduce"])
    for name in ("mlp", "transformer"):
        print(f"\n{name}: ms, ratio to bare DDP (med, min)")
        for row in found[name]:
            print(f"  {row['variant']:16} {row['ms']:8.3f} {row['med']:7.3f} {row['min']:7.3f}")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
