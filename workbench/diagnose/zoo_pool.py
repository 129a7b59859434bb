"""Running the incidents of a zoo: one after the other, in processes, or on an executor.

An incident that takes its process down, or whose worker is lost, is a row with an error.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from workbench.diagnose.zoo_run import empty_row, run_incident
from workbench.errors import StrictJsonError
from workbench.numerics import jsonio
from workbench.replay.child import reason_of

Row = dict[str, Any]
Task = tuple[Path, Path, dict[str, Any] | None, bool]
_ENTRY = "workbench.diagnose.zoo_pool"
_MARK = b"\x1eworkbench-row "


def run_all(
    tasks: list[Task], jobs: int, executor: Executor | None, isolated: bool
) -> Iterator[tuple[str, Row]]:
    """Run incidents, each as it finishes.

    Args:
        tasks: What `zoo_run.run_incident` takes.
        jobs: How many at once, without an executor.
        executor: Runs them instead.
        isolated: Give each a process of its own also where the executor takes it.
    """
    if executor is not None:
        yield from _submit(executor, tasks, isolated)
    elif jobs <= 1:
        for task in tasks:
            yield task[0].stem, run_incident(*task)
    else:
        yield from _in_processes(tasks, jobs)


def _submit(pool: Executor, tasks: list[Task], isolated: bool) -> Iterator[tuple[str, Row]]:
    waiting: dict[Future[Row], str] = {}
    for path, scratch, label, minimized in tasks:
        if isolated:
            future = pool.submit(run_isolated, str(path.absolute()), label, minimized)
        else:
            future = pool.submit(run_incident, path, scratch, label, minimized)
        waiting[future] = path.stem
    for future in as_completed(waiting):
        try:
            row = future.result()
        except Exception as error:  # noqa: BLE001 - a lost worker costs its own incidents
            row = _lost(f"its worker was lost ({type(error).__name__}: {error})")
        yield waiting[future], row


def _in_processes(tasks: list[Task], jobs: int) -> Iterator[tuple[str, Row]]:
    # spawned: an incident may leave threads and global state behind
    context = multiprocessing.get_context("spawn")
    left = {task[0].stem: task for task in tasks}
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        waiting = {pool.submit(run_incident, *task): stem for stem, task in left.items()}
        for future in as_completed(waiting):
            try:
                row = future.result()
            except BrokenProcessPool:
                continue
            del left[waiting[future]]
            yield waiting[future], row
    for stem, (path, _, label, minimized) in left.items():  # one of these broke the pool
        yield stem, run_isolated(str(path), label, minimized)


def run_isolated(path: str, label: dict[str, Any] | None, minimized: bool) -> Row:
    """Run one incident in a process of its own, wherever this is called.

    Args:
        path: The incident file.
        label: Its entry in ``labels.json``.
        minimized: Whether to minimise it too.
    """
    request = jsonio.dumps({"path": path, "label": label, "minimized": minimized})
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", _ENTRY],
        input=request.encode(),
        capture_output=True,
        check=False,
    )
    try:
        row: Row = jsonio.loads(done.stdout.rpartition(_MARK)[2])
    except StrictJsonError:
        stderr = done.stderr[-4000:].decode("utf-8", "replace")
        return _lost(f"its process died: {reason_of(done.returncode, stderr)}")
    return row


def _lost(why: str) -> Row:
    return empty_row() | {"error": f"The incident was not run to its end: {why}."}


def main() -> int:
    """Run the incident that stdin asks for and write its row."""
    asked = jsonio.loads(sys.stdin.buffer.read())
    with tempfile.TemporaryDirectory(prefix="workbench-zoo-") as scratch:
        path = Path(asked["path"])
        row = run_incident(path, Path(scratch) / path.stem, asked["label"], asked["minimized"])
    sys.stdout.flush()  # what the incident itself printed comes before the mark
    sys.stdout.buffer.write(_MARK + jsonio.dumps(row).encode() + b"\n")
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
