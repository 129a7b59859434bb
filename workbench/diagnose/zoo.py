"""Run a folder of incident files and say how often the diagnosis agrees with their labels."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from workbench.diagnose.zoo_run import run_incident
from workbench.diagnose.zoo_step import why_not_runnable
from workbench.errors import UsageError
from workbench.numerics import jsonio

SCHEMA = "workbench.zoo/1"
_COMPARED = ("step", "stage", "op", "place", "cause", "all")

Done = Callable[[str, dict[str, Any]], None]
"""Called with an incident's stem and row as it finishes."""


def run_zoo(
    directory: Path | str, jobs: int = 1, done: Done | None = None, executor: Executor | None = None
) -> dict[str, Any]:
    """Record, replay and diagnose every incident file of a folder.

    Args:
        directory: Folder with ``*.py`` incident files and perhaps a ``labels.json``.
        jobs: How many incidents run at once, each in a process of its own.
        done: Called as each incident finishes.
        executor: Runs the incidents instead of an own pool of processes.

    Returns:
        The ``workbench.zoo/1`` object.

    Raises:
        UsageError: No such folder, or no incident file in it.
    """
    folder = Path(directory)
    paths = sorted(p for p in folder.glob("*.py") if not p.name.startswith(("_", ".")))
    if not paths:
        raise UsageError(
            f"There is no incident file ('*.py') in '{folder}', so nothing was run. Name a folder "
            "of incident files; their format is in the README of the incidents folder."
        )
    labels = read_labels(folder / "labels.json")
    runnable, skipped = _split(paths, labels)
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="workbench-zoo-") as scratch:
        tasks = [(p, Path(scratch) / p.stem, labels.get(p.stem)) for p in runnable]
        for stem, row in _run_all(tasks, jobs, executor):
            rows[stem] = row
            if done is not None:
                done(stem, row)
    ordered = {path.stem: rows[path.stem] for path in runnable}
    return {
        "schema": SCHEMA,
        "incidents": ordered,
        "skipped": skipped,
        "totals": totals(ordered, labels),
    }


def read_labels(path: Path) -> dict[str, dict[str, Any]]:
    """Read ``labels.json``; an absent file means that nothing is compared."""
    if not path.is_file():
        return {}
    data = jsonio.loads(path.read_bytes())
    if not isinstance(data, dict):
        raise UsageError(
            f"The labels file '{path}' is not a JSON object by file stem, so nothing was compared."
        )
    return {stem: label for stem, label in data.items() if isinstance(label, dict)}


def totals(rows: dict[str, dict[str, Any]], labels: dict[str, dict[str, Any]]) -> dict[str, int]:
    """Count agreement over failures, and false alarms over healthy look-alikes."""
    failures = [s for s in rows if s in labels and not labels[s].get("negative")]
    healthy = [s for s in rows if s in labels and labels[s].get("negative")]
    counted = {
        "incidents": len(rows),
        "failures": len(failures),
        "healthy": len(healthy),
        "errors": sum(row["error"] is not None for row in rows.values()),
        "false_alarms": sum(bool(rows[s]["origins"] or rows[s]["absorbed"]) for s in healthy),
        "bitwise": sum(row["verdict"] == "bitwise" for row in rows.values()),
    }
    for field in _COMPARED:
        counted[f"agree_{field}"] = sum(
            bool((rows[s]["agrees"] or {}).get(field, rows[s]["agrees"] is not None))
            for s in failures
        )
    return counted


def _split(
    paths: list[Path], labels: dict[str, dict[str, Any]]
) -> tuple[list[Path], dict[str, str]]:
    """Set aside files that are no training loop."""
    runnable: list[Path] = []
    skipped: dict[str, str] = {}
    for path in paths:
        reason = why_not_runnable(path)
        if reason is None and labels.get(path.stem, {}).get("standalone"):
            reason = "labelled as one that runs itself"
        if reason is None:
            runnable.append(path)
        else:
            skipped[path.stem] = reason
    return runnable, skipped


Task = tuple[Path, Path, dict[str, Any] | None]


def _run_all(
    tasks: list[Task], jobs: int, executor: Executor | None
) -> Iterable[tuple[str, dict[str, Any]]]:
    if executor is not None:
        yield from _submit(executor, tasks)
    elif jobs <= 1:
        for path, scratch, label in tasks:
            yield path.stem, run_incident(path, scratch, label)
    else:
        # spawned: an incident may leave threads and global state behind
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, mp_context=context) as pool:
            yield from _submit(pool, tasks)


def _submit(pool: Executor, tasks: list[Task]) -> Iterable[tuple[str, dict[str, Any]]]:
    waiting = {pool.submit(run_incident, *task): task[0].stem for task in tasks}
    for future in as_completed(waiting):
        yield waiting[future], future.result()
