"""Where the cells of a sweep run: one process each, or wherever an executor takes them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from workbench.diagnose.cell import Task, run_task, stopped
from workbench.replay import ReplayWorker

Data = dict[str, Any]
_ENTRY = "workbench.diagnose:run_cell"


class Running:
    """Submits tasks to the caller's executor, or to one process per cell.

    Args:
        executor: The caller's, which is not shut down; None for processes of our own.
        jobs: Cells at a time without an executor.
        timeout_s: Longest time of a cell that has a process of its own.
        isolated: Whether each cell has one also where the executor takes it.
    """

    def __init__(
        self, executor: Executor | None, jobs: int, timeout_s: float | None, isolated: bool
    ) -> None:
        self._given = executor
        self._own = None if executor is not None else ThreadPoolExecutor(jobs)
        self._timeout_s = timeout_s
        self._isolated = isolated
        self._submitted: list[Future[Data]] = []
        self._workers: list[ReplayWorker] = []
        self._closing = False

    def __enter__(self) -> Callable[[Task], Future[Data]]:
        return self._submit

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            self._closing = True
            for future in self._submitted:
                future.cancel()
            for worker in self._workers:
                worker.stop()
        if self._own is not None:
            self._own.shutdown(cancel_futures=True)

    def _submit(self, task: Task) -> Future[Data]:
        if self._own is not None:
            future = self._own.submit(self._in_process, task)
        else:
            assert self._given is not None  # noqa: S101 - there is one or the other
            if self._isolated:
                future = self._given.submit(run_isolated, task, self._timeout_s, _import_path())
            else:
                future = self._given.submit(run_task, task)
        self._submitted.append(future)
        return future

    def _in_process(self, task: Task) -> Data:
        if self._closing:
            return stopped("stopped", "Stopped by you.")
        with ReplayWorker(task.bundle, task.step, task.trust) as worker:
            self._workers.append(worker)
            return _asked(worker, task, self._timeout_s)


def run_isolated(task: Task, timeout_s: float | None, path: list[str]) -> Data:
    """Run one cell in a process of its own, on whatever machine this is called.

    Args:
        task: The cell.
        timeout_s: Its longest time in seconds.
        path: Where the caller imports modules from, for a step that is named by its module.
    """
    with ReplayWorker(task.bundle, task.step, task.trust, import_path=path) as worker:
        return _asked(worker, task, timeout_s)


def result_of(future: Future[Data]) -> Data:
    """What came of a cell; a worker that was lost costs its own cells and no others."""
    try:
        return future.result()
    except Exception as error:  # noqa: BLE001 - a broken pool is this cell's result
        return stopped("died", f"{type(error).__name__}: {error}")


def anywhere(step: Any) -> Any:
    """A step's reference as another process, in another folder, finds it."""
    if not isinstance(step, str):
        return step
    file, _, name = step.rpartition(":")
    return f"{Path(file).absolute()}:{name}" if file.endswith(".py") else step


def _import_path() -> list[str]:
    return [str(Path(entry).absolute()) for entry in sys.path if entry] + [str(Path.cwd())]


def _asked(worker: ReplayWorker, task: Task, timeout_s: float | None) -> Data:
    event = worker.result("diagnose", timeout_s=timeout_s, entry=_ENTRY, **task.arguments)
    if event["event"] == "done":
        result: Data = event["result"]
        return result
    return stopped(event["event"], str(event.get("message", "")))
