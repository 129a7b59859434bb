"""Runs a worker file under torchrun: real processes, real gloo, one function for all tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Launched:
    """What a launch left.

    Attributes:
        code: torchrun's exit code; -9 where it ran past its time-out and was killed.
        timed_out: Whether it did.
        output: What all ranks and torchrun wrote, stdout and stderr together.
        directory: The folder the workers were told to write to.
    """

    code: int
    timed_out: bool
    output: str
    directory: Path

    def said(self, rank: int) -> dict[str, Any]:
        """What a rank left in ``rank<N>.json``; {} where it wrote none."""
        path = self.directory / f"rank{rank}.json"
        return json.loads(path.read_text()) if path.is_file() else {}


def launch(
    worker: Path,
    ranks: int,
    directory: Path,
    *arguments: str,
    timeout_s: float = 120.0,
    environment: dict[str, str] | None = None,
    module: bool = False,
    monitor_s: float = 0.1,
) -> Launched:
    """Run ``torchrun --nproc-per-node <ranks> <worker> <directory> <arguments>``.

    Args:
        worker: The worker file; it reads its folder from ``sys.argv[1]``.
        ranks: How many processes.
        directory: Where the workers write; made when it is missing.
        *arguments: Handed on to the worker after the folder.
        timeout_s: After so many seconds torchrun and all its ranks are killed.
        environment: Added to this process's.
        monitor_s: How often torchrun looks at its ranks; it ends all of them once one has ended.
        module: ``worker`` is the name of a module (``-m``), and no folder is handed on.
    """
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), "--monitor-interval", str(monitor_s)]
    command += ["-m", str(worker)] if module else [str(worker), str(directory)]
    known = dict(os.environ)
    known["PYTHONPATH"] = os.pathsep.join([str(ROOT), known.get("PYTHONPATH", "")]).strip(":")
    known |= {"OMP_NUM_THREADS": "1", "TORCHELASTIC_ERROR_FILE": str(directory / "error.json")}
    with (directory / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [*command, *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=known | (environment or {}),
            start_new_session=True,
        )
        timed_out = False
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            timed_out, code = True, -signal.SIGKILL
            _end(process.pid)
            process.wait()
    text = (directory / "output.txt").read_text(errors="replace")
    return Launched(code, timed_out, text, directory)


def _end(leader: int) -> None:
    """Kill torchrun and its ranks: torchrun starts each rank in a session of its own."""
    for pid in [*_children(leader), leader]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += [*_children(int(child)), int(child)]
    return found
