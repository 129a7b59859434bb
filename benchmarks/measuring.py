"""What the benchmarks share: timing variants side by side, the facts of a run, printing."""

from __future__ import annotations

import contextlib
import datetime
import gc
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

Run = Callable[[], Any]
Row = dict[str, Any]


FEWEST = 3


class Clock:
    """What is counted: time on the wall, or the processor's, on a machine that others use too."""

    now: Callable[[], float] = time.perf_counter


def timed(
    variants: Mapping[str, Run], rounds: int, limit_s: float | None = None
) -> dict[str, list[float]]:
    """Run variants in shuffled order, round by round; seconds by variant, one for each round.

    The garbage collector runs between rounds, not in them: whose turn it is when it happens to run
    would otherwise be charged with what all of them left behind.

    Args:
        variants: What is run, by name.
        rounds: Measured rounds; one more before them warms up.
        limit_s: No further round begins after so many seconds, once there are ``FEWEST``.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    began = time.perf_counter()
    gc.collect()
    gc.freeze()
    try:
        for number in range(rounds + 1):
            late = limit_s is not None and time.perf_counter() - began > limit_s
            if late and number > FEWEST:
                break
            _one_round(variants, times, warm=number > 0)
    finally:
        gc.unfreeze()
    return times


def _one_round(variants: Mapping[str, Run], times: dict[str, list[float]], *, warm: bool) -> None:
    order = list(variants)
    random.shuffle(order)
    gc.collect()
    gc.disable()
    try:
        for name in order:
            started = Clock.now()
            variants[name]()
            if warm:  # the first round warms up
                times[name].append(Clock.now() - started)
    finally:
        gc.enable()


def related(times: Mapping[str, list[float]], name: str, base: str, inner: int = 1) -> Row:
    """One row: the fastest time of one of ``inner`` runs, and the ratios to the base."""
    own, other = times[name], times[base]
    ratios = sorted(a / b for a, b in zip(own, other, strict=True))
    return {
        "variant": name,
        "base": base,
        "ms": min(own) / inner * 1e3,
        "med": statistics.median(ratios),
        "min": min(own) / min(other),
    }


def interleaved(variants: Mapping[str, Run], rounds: int, base: str) -> list[Row]:
    """Time variants side by side and relate each to the base."""
    times = timed(variants, rounds)
    return [related(times, name, base) for name in variants]


def processor() -> str:
    """The processor's name."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def facts(**more: Any) -> dict[str, Any]:
    """When and where this run was made."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        **more,
    }


def show(title: str, rows: list[Row], width: int = 38) -> None:
    """Print one table."""
    print(f"\n{title}")
    print(f"  {'':{width}}{'ms':>12}{'med':>9}{'min':>9}")
    for row in rows:
        print(f"  {row['variant']:{width}}{row['ms']:12.3f}{row['med']:9.3f}{row['min']:9.3f}")


class Tables:
    """Collects tables and prints them as text, or all of them as one JSON object."""

    def __init__(self, about: dict[str, Any], as_json: bool) -> None:
        self._about, self._json = about, as_json
        self._tables: dict[str, list[Row]] = {}
        if not as_json:
            print(", ".join(f"{key} {value}" for key, value in about.items()), flush=True)

    def add(self, title: str, rows: list[Row], width: int = 38) -> None:
        """Add one table, and print it unless JSON is wanted."""
        self._tables[title] = rows
        if not self._json:
            show(title, rows, width)

    def end(self) -> None:
        """Print the JSON where it is wanted."""
        if self._json:
            whole = {
                "schema": "workbench.benchmark/1", "facts": self._about, "tables": self._tables,
            }  # fmt: skip
            print(json.dumps(whole))
