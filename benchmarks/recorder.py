"""What recording costs where nothing is wrong: `python benchmarks/recorder.py [--quick] [--json]`.

Every variant runs the same model, optimizer and batch in one process, in shuffled order; a ratio is
taken within one round, so that a noisy machine disturbs both of its sides. `med` is the median of
those ratios, `min` the ratio of the fastest times. One thread unless `--threads` says otherwise.

The bare loop clears gradients, runs forward, loss and backward, and steps a fused AdamW. Rows that
name another base (`over ...`) are compared with a loop that clips, or scales, by itself. A recovery
point every 50 steps is measured as steps that take one and steps that take none, and amortised.
`same again` is the bare loop a second time: the noise of this run.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import random
import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measuring import Row, Run, Tables, facts, related, timed
from models import Convolutions, Perceptron, Transformer
from torch import nn

import workbench
from workbench.record import Policy, Recorder

EVERY = 50
LIMIT_S = 65.0
"""Seconds a table takes at most on a busy machine: five of them stay below six minutes."""
NORM = 1.0
BARE = "bare loop"
CLIPS = "clip_grad_norm_"
SCALES = "GradScaler"


class Case:
    """One model with its optimizer and batch.

    Args:
        model: The model.
        batch: ``x`` and ``y``.
        inner: Steps of one measurement.
        rounds: Measurements of every variant.
    """

    def __init__(
        self, model: nn.Module, batch: dict[str, torch.Tensor], inner: int, rounds: int
    ) -> None:
        self.model, self.batch, self.inner, self.rounds = model, batch, inner, rounds
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        # of its own: the recorder watches who steps an optimizer that a scaler is used with
        self.scaled = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        self.step = Step(self)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10**9)

    def forward_loss(self) -> torch.Tensor:
        return _loss(self.model(self.batch["x"]), self.batch["y"])

    def many(self, once: Run) -> Run:
        def run() -> None:
            for _ in range(self.inner):
                once()

        return run


class Step(workbench.TrainingStep):
    """The same step for the recorder."""

    def __init__(self, case: Case, clips: bool = False) -> None:
        self._case = case
        self.max_grad_norm = NORM if clips else None

    def forward(self, model, batch):
        return model(batch["x"])

    def loss(self, outputs, batch):
        return _loss(outputs, batch["y"])


def _loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, -2), labels.flatten())


def cases(quick: bool) -> dict[str, Callable[[], Case]]:
    """Makers of the cases; one is in memory at a time."""

    def small(model: nn.Module, shape: tuple[int, ...], inner: int, rounds: int) -> Case:
        batch = {"x": torch.randn(shape), "y": torch.randint(0, 10, shape[:1])}
        return Case(model, batch, *((2, 2) if quick else (inner, rounds)))

    def language(layers: int, width: int, heads: int, size: tuple[int, int], inner: int,
                 rounds: int) -> Case:  # fmt: skip
        tokens = torch.randint(0, 1000, (size[0], size[1] + 1))
        batch = {"x": tokens[:, :-1].contiguous(), "y": tokens[:, 1:].contiguous()}
        return Case(
            Transformer(layers, width, heads), batch, *((1, 2) if quick else (inner, rounds))
        )

    makers = {
        "mlp": lambda: small(Perceptron(), (32, 64), 32, 41),
        "cnn": lambda: small(Convolutions(), (16, 3, 16, 16), 10, 41),
        "transformer": lambda: language(4, 128, 4, (4, 64), 2, 21),
    }
    if quick:
        return makers | {"10M": lambda: language(2, 64, 4, (2, 16), 1, 2)}
    return makers | {
        "10M": lambda: language(8, 320, 8, (2, 128), 1, 9),
        "60M": lambda: language(16, 544, 8, (1, 128), 1, 7),
    }


# -- the user's own loops ---------------------------------------------------------------------


def bare(case: Case) -> None:
    case.optimizer.zero_grad(set_to_none=True)
    case.forward_loss().backward()
    case.optimizer.step()


def clips(case: Case, error: bool = False) -> None:
    case.optimizer.zero_grad(set_to_none=True)
    case.forward_loss().backward()
    nn.utils.clip_grad_norm_(case.model.parameters(), NORM, error_if_nonfinite=error)
    case.optimizer.step()


def scales(case: Case) -> None:
    case.scaled.zero_grad(set_to_none=True)
    case.scaler.scale(case.forward_loss()).backward()
    case.scaler.unscale_(case.scaled)
    case.scaler.step(case.scaled)
    case.scaler.update()


# -- peers ------------------------------------------------------------------------------------


def finite_loop(case: Case) -> None:
    case.optimizer.zero_grad(set_to_none=True)
    loss = case.forward_loss()
    if not torch.isfinite(loss):
        raise FloatingPointError
    loss.backward()
    for parameter in case.model.parameters():
        if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
            raise FloatingPointError
    case.optimizer.step()


def anomaly(case: Case) -> None:
    with torch.autograd.detect_anomaly(check_nan=True):
        bare(case)


class Hooked:
    """Forward hooks on every module while a variant runs, and on none otherwise."""

    def __init__(self, case: Case, attach: Callable[[nn.Module], Any]) -> None:
        self._case = case
        self._modules = list(case.model.modules())
        own = [module._forward_hooks for module in self._modules]
        self._put([collections.OrderedDict() for _ in self._modules])
        attach(case.model)
        self._hooks = [module._forward_hooks for module in self._modules]
        self._none = own
        self._put(own)

    def _put(self, hooks: list[Any]) -> None:
        for module, one in zip(self._modules, hooks, strict=True):
            module._forward_hooks = one

    def __call__(self) -> None:
        self._put(self._hooks)
        try:
            for _ in range(self._case.inner):
                bare(self._case)
        finally:
            self._put(self._none)


def statistics_hooks(model: nn.Module) -> None:
    """Largest magnitude and finiteness of every module's output, read at once."""

    def seen(module: nn.Module, args: Any, output: Any) -> None:
        del module, args
        if isinstance(output, torch.Tensor):
            with torch.no_grad():
                output.abs().max().item()
                bool(torch.isfinite(output).all())

    for module in model.modules():
        module.register_forward_hook(seen)


def hugging_face(model: nn.Module) -> None:
    from transformers.debug_utils import DebugUnderflowOverflow

    DebugUnderflowOverflow(model)


# -- the recorder -----------------------------------------------------------------------------


def recorded(case: Case, recorder: Recorder, clip: bool = False) -> None:
    """The user's own loop with the recorder around it."""
    case.optimizer.zero_grad(set_to_none=True)
    with recorder.step(case.batch) as s:
        loss = case.forward_loss()
        s.loss(loss)
        loss.backward()
        if s.gradients(max_norm=NORM if clip else None):
            s.update()


def variants(case: Case, folder: Path) -> tuple[dict[str, Run], dict[str, str]]:
    """All variants by name, and the base of those whose base is not the bare loop."""

    def recorder(name: str, clip: bool = False, scaler: Any = None) -> Recorder:
        step = Step(case, clip)
        optimizer = case.optimizer if scaler is None else case.scaled
        return Recorder(step, case.model, optimizer, scaler, folder, run_id=name)

    high, clipping, low = recorder("high"), recorder("clips", True), recorder("low")
    scaling = recorder("scales", scaler=case.scaler)
    found: dict[str, Run] = {
        BARE: case.many(lambda: bare(case)),
        "same again": case.many(lambda: bare(case)),
        CLIPS: case.many(lambda: clips(case)),
        SCALES: case.many(lambda: scales(case)),
        "recorder": case.many(lambda: high.train_step(case.batch)),
        "recorder, with-block": case.many(lambda: recorded(case, low)),
        "recorder, over a loop that clips": case.many(lambda: clipping.train_step(case.batch)),
        "recorder, over a loop that scales": case.many(lambda: scaling.train_step(case.batch)),
        "isfinite loop over parameters": case.many(lambda: finite_loop(case)),
        "clip_grad_norm_(error_if_nonfinite)": case.many(lambda: clips(case, error=True)),
        "statistics hooks on modules": Hooked(case, statistics_hooks),
        "detect_anomaly": case.many(lambda: anomaly(case)),
    }
    with contextlib.suppress(ImportError):
        found["HF DebugUnderflowOverflow"] = Hooked(case, hugging_face)
    bases = {
        "recorder, over a loop that clips": CLIPS,
        "recorder, over a loop that scales": SCALES,
    }
    return found, bases


def with_recovery(case: Case, folder: Path) -> dict[str, Run]:
    """Steps that take a recovery point, and the steps between them."""
    policy = Policy(recovery_every=EVERY)
    recorder = Recorder(case.step, case.model, case.optimizer, None, folder, "ring", policy)

    def at(number: int) -> None:
        recorder.step_index = recorder.step_index // EVERY * EVERY + EVERY + number
        recorder.train_step(case.batch)

    return {
        "with a recovery point": lambda: at(0),
        "between recovery points": case.many(lambda: at(1)),
    }


def table(case: Case, folder: Path) -> list[Row]:
    """All rows of one model."""
    found, bases = variants(case, folder)
    times = timed(found | with_recovery(case, folder), case.rounds, LIMIT_S)
    case.rounds = len(times[BARE])
    rows = [related(times, name, bases.get(name, BARE), case.inner) for name in found]
    return [*rows, _amortised(times, case.inner)]


def _amortised(times: dict[str, list[float]], inner: int) -> Row:
    """One recovery point every 50 steps, over the recorder without any."""
    point, between = times["with a recovery point"], times["between recovery points"]
    plain = times["recorder"]

    def over(point: float, between: float, plain: float) -> float:
        return (point + (EVERY - 1) * between / inner) / (EVERY * plain / inner)

    ratios = [over(*three) for three in zip(point, between, plain, strict=True)]
    return {
        "variant": f"recovery point every {EVERY}, over recorder",
        "base": "recorder",
        "ms": min(point) * 1e3,
        "med": statistics.median(ratios),
        "min": over(min(point), min(between), min(plain)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model", action="append", help="these models only")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    random.seed(0)
    tables = Tables(facts(quick=options.quick), options.json)
    for name, make in cases(options.quick).items():
        if options.model and name not in options.model:
            continue
        folder = Path(tempfile.mkdtemp(prefix="recorder-benchmark-"))
        try:
            case = make()
            size = sum(p.numel() for p in case.model.parameters())
            rows = table(case, folder)
            title = f"a recorded step, {name} ({size:,} parameters, {case.rounds} rounds)"
            tables.add(title, rows)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    tables.end()


if __name__ == "__main__":
    main()
