"""What a diagnosis costs: `python benchmarks/diagnosis.py [--quick] [--json] [--only step|events]`.

`step`: a transformer of 10M parameters whose step fails, in forward and in backward. The whole
diagnosis (two plain replays, trace, slice, causes, counterfactuals with their placebos, findings)
over the bare step (forward, loss, backward, update), and the same for one diagnosis without
counterfactuals. Each variant runs in a process of its own, so that its peak memory is its own:
`rest` is what the process holds before its first step, `peak` the most it held.

`events`: 48 blocks and 50,000 events, and half and a tenth of them. The op trace, and what comes
after it until the findings are written; whether that grows in step with the events is in the last
column.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from measuring import facts
from models import Transformer
from replay import Benchmarked, Tiny, language_model
from torch import nn

from workbench.diagnose.run import diagnose_replay
from workbench.evidence import open_bundle
from workbench.record import Policy, Recorder
from workbench.replay import Replay

STEPS = 5
SAMPLES = (2, 128)


class RootAtZero(Transformer):
    """A transformer with a root of zero between its blocks: finite forward, NaN in backward."""

    def forward(self, x):
        x = self.embedding(x)
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number == len(self.blocks) // 2:
                x = x + (x * 0.0).sqrt()
        return self.head(self.norm(x))


def failing(where: str, quick: bool) -> Benchmarked:
    """The step whose diagnosis is measured."""
    layers, width, heads = (2, 32, 2) if quick else (8, 320, 8)
    batch, length = (2, 16) if quick else SAMPLES
    step = language_model(layers, width, heads, batch, length)

    def make() -> nn.Module:
        torch.manual_seed(0)
        if where == "backward":
            return RootAtZero(layers, width, heads)
        model = Transformer(layers, width, heads)
        middle = model.get_submodule(f"blocks.{layers // 2}")
        middle.bad = where == "forward"  # type: ignore[assignment]
        return model

    return Benchmarked(make, step.batch)


def many_events(events: int, quick: bool) -> Benchmarked:
    """Blocks of tiny ops; one without a remainder in the last of them."""
    blocks = 4 if quick else 48
    each = max(1, round(events / blocks / 69))

    class Last(nn.Module):
        def forward(self, x):
            return x + (x * 0.0 - 1.0).log()

    def make() -> nn.Module:
        torch.manual_seed(0)
        parts = [nn.Sequential(*[Tiny(16) for _ in range(each)]) for _ in range(blocks)]
        return nn.Sequential(*parts, Last())

    return Benchmarked(make, {"x": torch.randn(8, 16)})


def recorded(step: Benchmarked, directory: Path) -> Path:
    """Run the step under a recorder and return the bundle it seals."""
    model = step.build_model()
    recorder = Recorder(
        step, model, step.build_optimizer(model), directory=directory, run_id="run",
        policy=Policy(on_nonfinite="skip"),
    )  # fmt: skip
    incident = recorder.train_step(step.batch).incident
    if incident is None:
        raise SystemExit("The step did not fail, so there is nothing to diagnose.")
    return Path(incident)


def memory() -> float:
    """Most resident memory so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def bare(step: Benchmarked) -> dict[str, float]:
    """The fastest of a few steps without any tool."""
    model = step.build_model()
    optimizer = step.build_optimizer(model)
    rest, times = memory(), []
    for _ in range(STEPS):
        started = time.perf_counter()
        optimizer.zero_grad()
        step.loss(step.forward(model, step.batch), step.batch).backward()
        optimizer.step()
        times.append(time.perf_counter() - started)
    return {"seconds": min(times), "rest": rest, "peak": memory()}


def diagnosed(step: Benchmarked, bundle: Path, counterfactuals: bool) -> dict[str, Any]:
    """One diagnosis from an open bundle to written findings, with the time of each part."""
    opened = open_bundle(bundle)
    rest, marks = memory(), []

    def say(sentence: str) -> None:
        marks.append((sentence.partition(":")[0], time.perf_counter()))

    started = time.perf_counter()
    say("Replaying twice without probes")
    replay = Replay(opened, step=step)
    replay.verdict()
    findings = diagnose_replay(opened, replay, say, counterfactuals=counterfactuals)
    ended = time.perf_counter()
    parts: dict[str, float] = {}
    for (name, at), (_, until) in zip(marks, [*marks[1:], ("", ended)], strict=True):
        parts[name] = parts.get(name, 0.0) + until - at
    rows = findings.data["counterfactuals"]
    return {
        "seconds": ended - started,
        "rest": rest,
        "peak": memory(),
        "parts": parts,
        "cause": findings.origins[0]["cause"] if findings.origins else None,
        "counterfactuals": [f"{r['intervention']}: {r['result']}/{r['placebo']}" for r in rows],
    }


def child(options: argparse.Namespace) -> None:
    """What a process of its own does; it prints JSON."""
    step = failing(options.where, options.quick)
    if options.child == "bare":
        found: dict[str, Any] = bare(step)
    else:
        found = diagnosed(step, Path(options.bundle), options.child == "full")
    print(json.dumps(found))


def in_child(options: argparse.Namespace, what: str, where: str, bundle: Path | None) -> Any:
    """Run one variant in a process of its own."""
    command = [sys.executable, __file__, "--child", what, "--where", where]
    command += ["--bundle", str(bundle)] if bundle else []
    command += ["--quick"] if options.quick else []
    command += ["--threads", str(options.threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def step_table(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The diagnosis of one step over the bare step, with a bare run before and after each."""
    rows = []
    for where in ("forward", "backward"):
        with tempfile.TemporaryDirectory() as directory:
            bundle = recorded(failing(where, options.quick), Path(directory))
            before = in_child(options, "bare", "none", None)
            full = in_child(options, "full", where, bundle)
            short = in_child(options, "short", where, bundle)
            after = in_child(options, "bare", "none", None)
        base = min(before["seconds"], after["seconds"])
        grown = max(before["peak"] - before["rest"], 1.0)
        for name, found in (("full", full), ("without counterfactuals", short)):
            rows.append(
                {
                    "fails in": where,
                    "diagnosis": name,
                    "bare ms": base * 1e3,
                    "bare again": max(before["seconds"], after["seconds"]) / base,
                    "ratio": found["seconds"] / base,
                    "bare peak MB": before["peak"],
                    "peak MB": found["peak"],
                    "peak ratio": found["peak"] / before["peak"],
                    "above rest ratio": (found["peak"] - found["rest"]) / grown,
                    "cause": found["cause"],
                    "parts": found["parts"],
                    "counterfactuals": found["counterfactuals"],
                }
            )
    return rows


def events_table(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time of a trace and of what comes after it, by number of events."""
    rows: list[dict[str, Any]] = []
    for events in options.events or ((400, 800) if options.quick else (5_000, 25_000, 50_000)):
        step = many_events(events, options.quick)
        with tempfile.TemporaryDirectory() as directory:
            bundle = open_bundle(recorded(step, Path(directory)))
            replay = Replay(bundle, step=step)
            replay.verdict()
            started = time.perf_counter()
            trace = replay.trace(until="backward")
            traced = time.perf_counter() - started
            cpu = time.process_time()
            started = time.perf_counter()
            found = _after(replay, trace, bundle)
            after = time.perf_counter() - started
            cpu = time.process_time() - cpu
        rows.append(
            {
                "events": len(trace.graph),
                "trace s": traced,
                "after s": after,
                "after cpu s": cpu,
                "after us an event": cpu / len(trace.graph) * 1e6,
                "origins": found,
            }
        )
    return rows


def _after(replay: Replay, trace: Any, bundle: Any) -> int:
    """Slice, causes, growth and findings of a trace that is there; the second pass is in it."""
    from workbench.diagnose.analysis import analyse
    from workbench.diagnose.document import build

    analysis = analyse(trace, lambda keep: replay.kept(keep, until="backward"))
    findings = build(bundle, replay.verdict(trace), analysis, [], None, replay)
    return len(findings.origins)


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """Print one table, a block a row."""
    print(f"\n{title}")
    for row in rows:
        plain = {k: v for k, v in row.items() if not isinstance(v, dict | list)}
        print("  " + ", ".join(f"{k} {_text(v)}" for k, v in plain.items()))
        for name in ("parts", "counterfactuals"):
            held = row.get(name) or {}
            for key in held:
                seconds = f" {held[key]:.2f} s" if isinstance(held, dict) else ""
                print(f"      {key}{seconds}")


def _text(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=["step", "events"])
    parser.add_argument("--events", type=int, action="append", help="of the events table")
    parser.add_argument("--child", choices=["bare", "full", "short"], help=argparse.SUPPRESS)
    parser.add_argument("--where", default="none", help=argparse.SUPPRESS)
    parser.add_argument("--bundle", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    if options.child:
        child(options)
        return
    about = facts(quick=options.quick)
    tables: dict[str, list[dict[str, Any]]] = {}
    if options.only in (None, "step"):
        tables["diagnosis of one failing step, over the bare step"] = step_table(options)
    if options.only in (None, "events"):
        tables["after the trace, by number of events"] = events_table(options)
    if options.json:
        whole = {"schema": "workbench.benchmark/1", "facts": about, "tables": tables}
        print(json.dumps(whole))
        return
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    for title, rows in tables.items():
        show(title, rows)


if __name__ == "__main__":
    main()
