"""What replaying costs, as ratios within one run: `python benchmarks/replay.py [--quick] [--json]`.

All variants of a table alternate in one process in shuffled order; a ratio is taken within one
round, so that a noisy machine disturbs both of its sides. `med` is the median of those ratios,
`min` the ratio of the fastest times. One thread unless `--threads` says otherwise.

On a machine that other programs use too, `--cpu` counts processor time: waiting is left out then,
but not what the others do to the caches.

Tables: replay of forward and backward, un-instrumented, with module ranges by hooks, with the full
op trace, with anomaly mode, and with TorchLens (forward) and Hugging Face's DebugUnderflowOverflow
where they can be imported; CUDA's autocast policy on a CPU over float32; finding the first bad
block by a scan, by halving and by a full trace; statistics of a tensor against one plain sum.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import time
from collections.abc import Callable
from typing import Any

import torch
from measuring import Clock, Run, Tables, facts, interleaved
from models import Transformer
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from workbench.diagnose.boundaries import blocks
from workbench.diagnose.probes import ForwardScan, Prober
from workbench.evidence.conditions import Conditions
from workbench.numerics import all_finite, tensor_stats
from workbench.numerics.collected import Collector
from workbench.replay import Replay
from workbench.replay.session import Session
from workbench.replay.source import Source
from workbench.replay.trace import Trace, trace_step
from workbench.replay.trace_layers import leading_tensors
from workbench.step import TrainingStep
from workbench.step.state import capture_state

# -- models -----------------------------------------------------------------------------------


class Tiny(nn.Module):
    """Many ops of a few microseconds each."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x):
        y = self.norm(self.linear(x))
        y = torch.tanh(y) * torch.sigmoid(x) + y.abs().sqrt() * 0.1
        return x + (y - y.mean(-1, keepdim=True)) / (y.std(-1, keepdim=True) + 1.0)


class Benchmarked(TrainingStep):
    """A step around a model made by a function."""

    def __init__(self, make: Callable[[], nn.Module], batch: dict[str, torch.Tensor]) -> None:
        self._make, self.batch = make, batch

    def build_model(self):
        return self._make()

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def forward(self, model, batch):
        return model(batch["x"])

    def loss(self, outputs, batch):
        if "y" in batch:
            return nn.functional.cross_entropy(outputs.flatten(0, 1), batch["y"].flatten())
        return outputs.square().mean()


def language_model(layers: int, width: int, heads: int, batch: int, length: int) -> Benchmarked:
    tokens = torch.randint(0, 1000, (batch, length + 1))
    data = {"x": tokens[:, :-1].contiguous(), "y": tokens[:, 1:].contiguous()}
    return Benchmarked(lambda: Transformer(layers, width, heads), data)


def tiny_ops(depth: int, width: int = 160, batch: int = 128) -> Benchmarked:
    """Ops of about 25 us on one core of a server; the table says what they took in the run."""
    return Benchmarked(
        lambda: nn.Sequential(*[Tiny(width) for _ in range(depth)]),
        {"x": torch.randn(batch, width)},
    )


def models(quick: bool) -> dict[str, Benchmarked]:
    if quick:
        return {"small": language_model(2, 32, 2, 2, 16), "tiny ops": tiny_ops(4, 32, 16)}
    return {
        "small": language_model(4, 128, 4, 4, 64),
        "10M": language_model(8, 320, 8, 2, 128),
        "60M": language_model(16, 544, 8, 1, 128),
        "tiny ops": tiny_ops(72),
        "tiniest ops": tiny_ops(48, 32, 16),
    }


def replay_of(step: Benchmarked) -> Replay:
    """A replay of a step that was not recorded to disk: its state is all a replay needs."""
    torch.manual_seed(0)
    model = step.build_model()
    optimizer = step.build_optimizer(model)
    state = capture_state(model, [optimizer], None, (), [step.batch], 0)
    recorded = Conditions(threads=torch.get_num_threads())
    complete = dict.fromkeys(("forward_loss", "backward", "update"), "complete")
    return Replay.from_source(Source(step, state, recorded, kind="captured", completeness=complete))


# -- tables -----------------------------------------------------------------------------------


def replay_table(
    step: Benchmarked, rounds: int, peers: bool = True
) -> tuple[str, list[dict[str, Any]]]:
    """How many ops of which length, and forward, loss and backward of one model side by side.

    Building and restoring are not timed. An empty dispatch mode shows what any op trace costs.
    """
    replay = replay_of(step)

    def prepared(**changes: Any) -> Session:
        return Session(replay.source, replay.nearest.replace(**changes))

    # one session each, rewound: what is timed is the step, not the building of the model
    sessions = {name: prepared() for name in ("bare", "twin", "hooks", "trace", "hf")}
    anomaly = prepared(anomaly=True)
    variants: dict[str, Run] = {
        "un-instrumented": lambda: _fwd_bwd(sessions["bare"]),
        "the same again (noise)": lambda: _fwd_bwd(sessions["twin"]),
        "empty dispatch mode": lambda: _in_empty_mode(sessions["twin"]),
        "module ranges (hooks)": lambda: _with_ranges(sessions["hooks"]),
        "op trace without exponents": lambda: _traced(sessions["trace"], exponents=False),
        "op trace with exponents": lambda: _traced(sessions["trace"]),
        "anomaly mode": lambda: _fwd_bwd(anomaly),
    }
    if peers:
        variants |= _torchlens(step) | _hugging_face(sessions["hf"])
    events = len(_traced(sessions["trace"]).graph)
    rows = interleaved(variants, rounds, "un-instrumented")
    bare = rows[0]["ms"] / events * 1e3
    return f"{events:,} ops of {bare:.0f} us", rows


def _rewind(session: Session) -> None:
    session.runner.begin(session.batches, 0)


def _fwd_bwd(session: Session) -> None:
    _rewind(session)
    with session.running():
        while session.runner.next_unit is not None and session.runner.next_unit.stage != "reduce":
            session.runner.advance()


class Empty(TorchDispatchMode):
    """Hands every op on."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        return func(*args, **(kwargs or {}))


def _in_empty_mode(session: Session) -> None:
    with Empty():
        _fwd_bwd(session)


def _with_ranges(session: Session) -> None:
    """Ranges of every module's outputs, forward only hooks, statistics as in a trace."""
    found: list[Any] = []
    collector = Collector()

    def seen(module: nn.Module, args: Any, output: Any) -> None:
        del module, args
        for _, tensor in leading_tensors(output):
            found.append(collector.quick(tensor) or collector.take(tensor))

    handles = [m.register_forward_hook(seen) for m in session.runner.model.modules()]
    try:
        _fwd_bwd(session)
        collector.settle()
    finally:
        for handle in handles:
            handle.remove()


def _traced(session: Session, exponents: bool = True) -> Trace:
    _rewind(session)
    with session.running(traced=True):
        return trace_step(
            session.runner,
            until="backward",
            micro_batches=session.batches,
            exponents=exponents,
        )


def _torchlens(step: Benchmarked) -> dict[str, Run]:
    try:
        import torchlens
    except ImportError:
        return {}
    model = step.build_model()
    return {
        "TorchLens (forward alone)": lambda: torchlens.trace(model, step.batch["x"]),
    }


def _hugging_face(session: Session) -> dict[str, Run]:
    try:
        from transformers.debug_utils import DebugUnderflowOverflow
    except ImportError:
        return {}

    DebugUnderflowOverflow(session.runner.model)
    return {"Hugging Face DebugUnderflowOverflow": lambda: _fwd_bwd(session)}


def autocast_table(step: Benchmarked, rounds: int) -> list[dict[str, Any]]:
    """CUDA's autocast policy on a CPU, as a replay applies it, over float32.

    Putting the policy's kernels in and taking them out again is part of each run.
    """
    replay = replay_of(step)
    plain, again, policy = (
        Session(replay.source, replay.nearest.replace(autocast=autocast))
        for autocast in ("off", "off", "cuda-policy")
    )
    variants: dict[str, Run] = {
        "float32": lambda: _fwd_bwd(plain),
        "the same again (noise)": lambda: _fwd_bwd(again),
        "CUDA's autocast policy": lambda: _fwd_bwd(policy),
    }
    return interleaved(variants, rounds, "float32")


def bisect_table(layers: int, rounds: int, quick: bool) -> list[dict[str, Any]]:
    """Finding the block where NaN is born, over one forward that looks at nothing."""
    width = 32 if quick else 256
    bad = layers * 5 // 8

    def make() -> nn.Module:
        model = Transformer(layers, width, 4)
        model.get_submodule(f"blocks.{bad}").bad = True  # type: ignore[assignment]
        return model

    tokens = torch.randint(0, 1000, (2, 64 if not quick else 8))
    step = Benchmarked(make, {"x": tokens, "y": tokens})
    replay = replay_of(step)
    prober = Prober(replay)
    session = Session(replay.source, replay.nearest)
    targets = blocks(session.runner.model)

    def forward() -> None:
        _rewind(session)
        with session.running():
            session.runner.advance()
            session.runner.advance()

    def scan(**limits: Any) -> None:
        _rewind(session)
        _scanned(session, ForwardScan(targets, **limits))

    def halving() -> None:
        low, high = -1, len(targets)
        while high - low > 1:
            middle = (low + high) // 2
            seen = _scanned(session, ForwardScan(targets, only=middle))
            low, high = (middle, high) if not seen.kinds else (low, middle)

    def one_by_one() -> None:
        for number in range(len(targets)):
            if _scanned(session, ForwardScan(targets, only=number)).kinds:
                return

    del prober
    variants: dict[str, Run] = {
        "one forward": forward,
        "scan of boundaries, early stop": scan,
        "halving by fresh prefix runs": halving,
        "one run a block": one_by_one,
        "full op trace": lambda: _traced(session),
    }
    return interleaved(variants, rounds, "one forward")


def _scanned(session: Session, scan: ForwardScan) -> Any:
    """Run hooks on a session that is rewound; `Prober` would build the model anew each time."""
    from workbench.diagnose.probes import Seen, Stop

    _rewind(session)
    with contextlib.ExitStack() as stack:
        stack.enter_context(session.running())
        scan(session, stack)
        try:
            while session.runner.next_unit is not None:
                if session.runner.advance().status == "bad":
                    break
        except Stop as stop:
            return stop.seen
    return Seen(None)


def statistics_table(elements: int, dtype: torch.dtype, rounds: int) -> list[dict[str, Any]]:
    """Statistics of one tensor over one plain reduction of it."""
    x = torch.randn(elements).to(dtype)
    variants: dict[str, Run] = {
        "sum": x.sum,
        "all_finite": lambda: all_finite([x]),
        "tensor_stats": lambda: tensor_stats(x),
        "torch.isfinite(x).all()": lambda: bool(torch.isfinite(x).all()),
    }
    return interleaved(variants, rounds, "sum")


# -- the command -----------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", choices=["replay", "autocast", "bisect", "statistics"])
    parser.add_argument(
        "--no-peers",
        dest="peers",
        action="store_false",
        help="leave out other tools, which are slow",
    )
    parser.add_argument("--model", action="append", help="of the replay table, these models only")
    parser.add_argument("--cpu", action="store_true", help="count processor time")
    options = parser.parse_args()
    if options.cpu:
        Clock.now = time.process_time
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    random.seed(0)
    rounds = 2 if options.quick else options.rounds
    about = facts(rounds=rounds, quick=options.quick, time="processor" if options.cpu else "wall")
    tables = Tables(about, options.json)
    if options.only in (None, "replay"):
        for name, step in models(options.quick).items():
            if options.model and name not in options.model:
                continue
            ops, rows = replay_table(step, rounds, options.peers)
            tables.add(f"replay of forward and backward, {name}: {ops}", rows)
    if options.only in (None, "autocast"):
        name = "small" if options.quick else "10M"
        rows = autocast_table(models(options.quick)[name], rounds)
        tables.add(f"CUDA's autocast policy on a CPU, {name}", rows)
    if options.only in (None, "bisect"):
        for layers in (4,) if options.quick else (24, 48):
            rows = bisect_table(layers, rounds, options.quick)
            tables.add(f"the first bad of {layers} blocks, over one forward", rows)
    if options.only in (None, "statistics"):
        for elements in (10_000,) if options.quick else (10**6, 10**7, 10**8):
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                name = str(dtype).removeprefix("torch.")
                rows = statistics_table(elements, dtype, rounds)
                tables.add(f"statistics of {elements:,} elements of {name}, over one sum", rows)
    tables.end()


if __name__ == "__main__":
    main()
