"""A long recorded run of a tiny model: ``python scripts/long_run.py [--steps 200000] [--plain]``.

With a loss scaler, float16 autocast, skips (single ones and storms), alerts and bundles on the way.
With ``--plain`` without scaler, autocast and recovery points: nearly every step is a quiet one.
At the end: whether memory stayed flat, the ledger rotated, every budget held, and whether recording
costs as much at the end as at first. That is told from a fresh recorder: at every tenth a second
process starts the same loop anew, and the two run blocks in turn, since a machine gets slower and
faster by itself, and a bare loop, small enough for the processor's caches, feels its neighbours
less than a recorded one. Exit code 0 when all hold, 1 when one does not.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from workbench import Alerts, Autocast, Policy, Recorder, TrainingStep
from workbench.numerics import jsonio

BLOCK = 100
"""Steps of one measured block, and of the block of a fresh recorder beside it."""
TURNS = 21
"""Pairs of blocks of a comparison; it says the middle one of their ratios."""
WARM = 1000
"""Steps of a fresh recorder before its first block: its recovery ring is full."""
LEDGER_BYTES = 64 * 2**20
BUNDLES = 20
TOTAL_BYTES = 24 * 2**20


class Tiny(TrainingStep):
    """Two layers under float16 autocast with a loss scaler."""

    autocast: Autocast | None = Autocast(torch.float16)

    def build_model(self) -> torch.nn.Module:
        """A model of 49 parameters."""
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    def build_optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(model.parameters(), lr=1e-3)

    def build_scaler(self) -> torch.amp.GradScaler | None:
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


def recorder_of(directory: Path, plain: bool) -> Recorder:
    """A recorder with every budget small enough to be met on the way."""
    step = Plain() if plain else Tiny()
    model = step.build_model()
    policy = Policy(
        on_nonfinite="skip", max_bundles=BUNDLES, max_total_bytes=TOTAL_BYTES,
        ledger_bytes=LEDGER_BYTES, recovery_every=0 if plain else 50, recovery_bytes=4 * 2**20,
        alerts=Alerts() if plain else Alerts(consecutive_skips=8, loss_factor=1000.0),
    )  # fmt: skip
    optimizer, scaler = step.build_optimizer(model), step.build_scaler()
    return Recorder(step, model, optimizer, scaler, directory, "long", policy)


def block(recorder: Recorder, generator: torch.Generator) -> float:
    """Processor seconds of a step without a fault, the middle of one block."""
    taken = []
    for _ in range(BLOCK):
        batch = batch_of(1, generator, 10**9)
        begun = time.process_time()
        recorder.train_step(batch)
        taken.append(time.process_time() - begun)
    return statistics.median(taken)


def fresh(plain: bool) -> None:
    """The other process of a comparison: a new recorder, a block for every line read."""
    quieten()
    with tempfile.TemporaryDirectory(prefix="fresh-run-") as directory:
        recorder = recorder_of(Path(directory), plain)
        generator = torch.Generator().manual_seed(2)
        for _ in range(WARM // BLOCK):
            block(recorder, generator)
        for _ in sys.stdin:
            print(block(recorder, generator), flush=True)
        recorder.close()


def compared(recorder: Recorder, generator: torch.Generator, plain: bool) -> float:
    """What a step costs here, over what it costs a fresh recorder in a fresh process."""
    command = [sys.executable, __file__, "--fresh", *(["--plain"] if plain else [])]
    ratios = []
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        if child.stdin is None or child.stdout is None:
            raise RuntimeError("the fresh recorder's process has no pipes")
        for _ in range(TURNS):
            child.stdin.write("block\n")
            child.stdin.flush()
            other = float(child.stdout.readline())
            ratios.append(block(recorder, generator) / other)
        child.stdin.close()
    return statistics.median(ratios)


def train(steps: int, directory: Path, plain: bool) -> dict[str, Any]:
    """Run it and say what was seen."""
    recorder = recorder_of(directory, plain)
    generator = torch.Generator().manual_seed(1)
    seen: dict[str, int] = {"updated": 0, "scaler": 0, "gate": 0}
    tenths: list[tuple[float, int]] = []
    try:
        for number in range(steps):
            batch = batch_of(number, generator, steps)
            if plain:
                batch["pull"].zero_()
            result = recorder.train_step(batch)
            seen["updated" if result.updated else result.skipped_by] += 1
            if (number + 1) % (steps // 10) == 0:
                gc.collect()
                held = memory()
                over = compared(recorder, generator, plain)
                tenths.append((over, held))
                said = f"step {number + 1}: {held / 2**20:.0f} MiB, {over:.2f} of a fresh one"
                print(said, file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("Stopped; what ran so far is judged.", file=sys.stderr)
    recorder.close()
    ran = recorder.step_index
    return {
        "plain": plain,
        "steps": ran,
        "seen": seen,
        "failures": recorder.failures,
        "tenths": tenths,
    }


def judge(directory: Path, run: dict[str, Any]) -> dict[str, Any]:
    """The figures and what does not hold."""
    steps: int = run["steps"]
    tenths: list[tuple[float, int]] = run["tenths"]
    over_fresh = [ratio for ratio, _ in tenths]
    warm, last = tenths[0][1], tenths[-1][1]
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
        "recording costs at the end what it costs a fresh recorder": statistics.median(
            over_fresh[-3:]
        )
        < 1.15,
        "nothing failed inside the recorder": not run["failures"],
    }
    return {
        "steps": steps, "plain": run["plain"], "seen": run["seen"],
        "bundles": kinds, "bundle_bytes": sum(sizes),
        "ledger_bytes": sum(p.stat().st_size for p in parts), "ledger_records": len(records),
        "memory_mib": {"warm": warm / 2**20, "end": last / 2**20},
        "over_fresh": over_fresh, "failures": run["failures"], "holds": holds,
    }  # fmt: skip


def quieten() -> None:
    """One thread, and no word of the recorder's to the terminal."""
    torch.set_num_threads(1)
    logging.getLogger("workbench").setLevel(logging.CRITICAL)


def main() -> int:
    """Run, print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--plain", action="store_true", help="no scaler, no recovery points")
    parser.add_argument("--fresh", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    if given.fresh:
        fresh(given.plain)
        return 0
    if given.steps < 40_000:
        parser.error("fewer than 40,000 steps are too few to tell a trend")
    quieten()
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
