"""A long recorded run of a tiny model: ``python scripts/long_run.py [--steps 200000] [--plain]``.

With a loss scaler, float16 autocast, skips (single ones and storms), alerts and bundles on the way.
With ``--plain`` without scaler, autocast and recovery points: nearly every step is a quiet one.
At the end: whether memory stayed flat, the ledger rotated, every budget held, and whether recording
costs as much in the last tenth as in the first. The last is told from bare blocks of the same
loop that run in between, since a machine gets slower and faster by itself. Exit code 0 when all
hold, 1 when one does not.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from workbench import Alerts, Autocast, Policy, Recorder, TrainingStep
from workbench.numerics import jsonio

BLOCK = 200
"""Steps of one measured block, and of the bare block beside it."""
LEDGER_BYTES = 64 * 2**20
BUNDLES = 20
TOTAL_BYTES = 24 * 2**20


class Tiny(TrainingStep):
    """Two layers under float16 autocast with a loss scaler."""

    autocast = Autocast(torch.float16)

    def build_model(self) -> torch.nn.Module:
        """A model of 49 parameters."""
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    def build_optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(model.parameters(), lr=1e-3)

    def build_scaler(self) -> torch.amp.GradScaler:
        """A scaler that grows often, so that it also skips by itself."""
        return torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=500)

    def forward(self, model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The output."""
        return model(batch["x"])

    def loss(self, outputs: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Mean square; ``pull`` makes finite losses whose scaled gradient is too large."""
        return (outputs.float() - batch["y"]).square().mean() + batch["pull"] * outputs.mean()


class Plain(Tiny):
    """The same in float32."""

    autocast = None

    def build_scaler(self) -> None:
        """None."""


def batch_of(step: int, generator: torch.Generator, steps: int) -> dict[str, torch.Tensor]:
    """A batch: a NaN now and then, a gradient that overflows now and then, in storms too."""
    x = torch.randn(8, 4, generator=generator)
    pull = 0.0
    if step % 997 == 500 or step % (steps // 4) in range(100, 112):
        pull = 3e4
    if step % (steps // 40) == steps // 80:
        x[3, 1] = float("nan")
    return {"x": x, "y": x.sum(-1, keepdim=True).tanh(), "pull": torch.tensor(pull)}


def memory() -> int:
    """Bytes of this process that are in memory."""
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * resource.getpagesize()


def bare_block(step: Tiny, generator: torch.Generator) -> float:
    """Processor seconds of a step without a recorder, the middle of one block."""
    model = step.build_model()
    optimizer, scaler = step.build_optimizer(model), step.build_scaler()
    taken = []
    for _ in range(BLOCK):
        batch = batch_of(1, generator, 10**9)
        begun = time.process_time()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=scaler is not None):
            loss = step.loss(step.forward(model, batch), batch)
        step.backward(loss, scaler)
        step.unscale([optimizer], scaler)
        step.update(model, optimizer, scaler)
        taken.append(time.process_time() - begun)
    return statistics.median(taken)


def train(steps: int, directory: Path, plain: bool) -> dict[str, Any]:
    """Run it and say what was seen."""
    step = Plain() if plain else Tiny()
    model = step.build_model()
    policy = Policy(
        on_nonfinite="skip", max_bundles=BUNDLES, max_total_bytes=TOTAL_BYTES,
        ledger_bytes=LEDGER_BYTES, recovery_every=0 if plain else 50, recovery_bytes=4 * 2**20,
        alerts=Alerts() if plain else Alerts(consecutive_skips=8, loss_factor=1000.0),
    )  # fmt: skip
    recorder = Recorder(
        step, model, step.build_optimizer(model), step.build_scaler(), directory, "long", policy
    )
    generator = torch.Generator().manual_seed(1)
    seen: dict[str, int] = {"updated": 0, "scaler": 0, "gate": 0}
    blocks: list[tuple[float, float, int]] = []
    taken: list[float] = []
    try:
        for number in range(steps):
            batch = batch_of(number, generator, steps)
            if plain:
                batch["pull"].zero_()
            begun = time.process_time()
            result = recorder.train_step(batch)
            taken.append(time.process_time() - begun)
            seen["updated" if result.updated else result.skipped_by] += 1
            if len(taken) == BLOCK:
                if number // BLOCK % 10 == 0:
                    gc.collect()
                    blocks.append((statistics.median(taken), bare_block(step, generator), memory()))
                taken.clear()
            if number % (steps // 20) == 0:
                print(f"step {number}: {memory() / 2**20:.0f} MiB", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("Stopped; what ran so far is judged.", file=sys.stderr)
    recorder.close()
    ran = recorder.step_index
    return {
        "plain": plain,
        "steps": ran,
        "seen": seen,
        "failures": recorder.failures,
        "blocks": blocks,
    }


def judge(directory: Path, run: dict[str, Any]) -> dict[str, Any]:
    """The figures and what does not hold."""
    steps: int = run["steps"]
    blocks: list[tuple[float, float, int]] = run["blocks"]
    tenth = len(blocks) // 10
    ratio = [recorded / bare for recorded, bare, _ in blocks]
    early = statistics.median(ratio[tenth : 2 * tenth])  # the first tenth warms up
    late = statistics.median(ratio[-tenth:])
    warm, last = blocks[tenth][2], blocks[-1][2]
    bundles = sorted(directory.glob("*.bundle"))
    sizes = [sum(f.stat().st_size for f in b.rglob("*") if f.is_file()) for b in bundles]
    parts = sorted(directory.glob("*.ledger*.jsonl"))
    records = [jsonio.loads(line)["step"] for part in parts for line in part.open("rb")]
    kinds: dict[str, int] = {}
    for bundle in bundles:
        kind = jsonio.loads((bundle / "manifest.json").read_bytes())["kind"]
        kinds[kind] = kinds.get(kind, 0) + 1
    holds = {
        "memory is flat": last - warm < 16 * 2**20,
        "the ledger rotated within its bytes": len(parts) == 2
        and sum(p.stat().st_size for p in parts) <= LEDGER_BYTES,
        "the ledger ends with the last step, without a gap": records
        == list(range(steps - len(records), steps)),
        "bundles within their number and bytes": len(bundles) <= BUNDLES
        and sum(sizes) <= TOTAL_BYTES,
        "bundles of every kind": ({"nonfinite"} if run["plain"] else {"nonfinite", "alert"})
        <= set(kinds),
        "recording costs at the end what it cost at first": late < 1.15 * early,
        "nothing failed inside the recorder": not run["failures"],
    }
    return {
        "steps": steps, "plain": run["plain"], "seen": run["seen"],
        "bundles": kinds, "bundle_bytes": sum(sizes),
        "ledger_bytes": sum(p.stat().st_size for p in parts), "ledger_records": len(records),
        "memory_mib": {"warm": warm / 2**20, "end": last / 2**20},
        "over_bare": {"first": early, "last": late}, "failures": run["failures"], "holds": holds,
    }  # fmt: skip


def main() -> int:
    """Run, print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--plain", action="store_true", help="no scaler, no recovery points")
    given = parser.parse_args()
    if given.steps < 40_000:
        parser.error("fewer than 40,000 steps are too few to tell a trend")
    torch.set_num_threads(1)
    logging.getLogger("workbench").setLevel(logging.CRITICAL)
    os.environ["OMP_NUM_THREADS"] = "1"
    directory = Path(tempfile.mkdtemp(prefix="long-run-"))
    try:
        begun = time.monotonic()
        found = judge(directory, train(given.steps, directory, given.plain))
        found["seconds"] = time.monotonic() - begun
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(jsonio.dumps(found, indent=1))
    return 0 if all(found["holds"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
