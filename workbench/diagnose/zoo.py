"""Run a folder of incident files and say how often the diagnosis agrees with their labels."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from workbench.diagnose.zoo_pool import run_all
from workbench.diagnose.zoo_step import why_not_runnable
from workbench.errors import UsageError
from workbench.numerics import jsonio

SCHEMA = "workbench.zoo/1"
_COMPARED = ("step", "stage", "op", "place", "cause", "all")

Done = Callable[[str, dict[str, Any]], None]
"""Called with an incident's stem and row as it finishes."""


def run_zoo(
    directory: Path | str,
    jobs: int = 1,
    done: Done | None = None,
    executor: Executor | None = None,
    minimized: bool = False,
    isolated: bool = False,
) -> dict[str, Any]:
    """Record, replay and diagnose every incident file of a folder.

    Args:
        directory: Folder with ``*.py`` incident files and perhaps a ``labels.json``.
        jobs: How many incidents run at once, each in a process of its own.
        done: Called as each incident finishes.
        executor: Runs the incidents instead of an own pool of processes; any of
            ``concurrent.futures``, Dask's ``Client.get_executor()`` among them.
        minimized: Whether to minimise each failure too and to count the checked scripts.
        isolated: Give each incident a process of its own also where the executor takes it.

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
        tasks = [(p, Path(scratch) / p.stem, labels.get(p.stem), minimized) for p in runnable]
        for stem, row in run_all(tasks, jobs, executor, isolated):
            rows[stem] = row
            if done is not None:
                done(stem, row)
    ordered = {path.stem: rows[path.stem] for path in runnable}
    return {
        "schema": SCHEMA,
        "incidents": ordered,
        "skipped": skipped,
        "misses": misses(ordered, labels),
        "totals": totals(ordered, labels),
    }


def read_labels(path: Path) -> dict[str, dict[str, Any]]:
    """Read ``labels.json``; an absent file means that nothing is compared."""
    if not path.is_file():
        return {}
    data = jsonio.loads(path.read_bytes())
    if not isinstance(data, dict):
        raise UsageError(
            f"The labels file '{path}' is not a JSON object by file stem, so nothing was "
            "compared. Write it as the one in tests/incidents is."
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
    counted["gone_with_placebo"] = sum(specific(rows[s]) for s in failures)
    if any("minimized" in row for row in rows.values()):
        counted["minimized"] = sum(
            bool(rows[s].get("minimized", {}).get("checked")) for s in failures
        )
    return counted


def specific(row: dict[str, Any]) -> bool:
    """Whether some change made the failure go while its placebo left it as it was."""
    return any(
        c["result"] == "gone" and c["placebo"] == "unchanged" for c in row["counterfactuals"]
    )


def misses(rows: dict[str, dict[str, Any]], labels: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Say of each incident that is not answered in full what is missing, and why.

    Args:
        rows: The incidents' rows.
        labels: Their labels.
    """
    found: dict[str, str] = {}
    for stem, row in rows.items():
        label = labels.get(stem)
        if row["error"] is not None:
            found[stem] = str(row["error"])
        elif label is None:
            continue
        elif label.get("negative"):
            if row["origins"] or row["absorbed"]:
                found[stem] = "a false alarm"
        else:
            said = [*_differences(row, label), *_untested(row)]
            if said:
                found[stem] = "; ".join(said)
    return found


def _differences(row: dict[str, Any], label: dict[str, Any]) -> list[str]:
    answer = row if row["origins"] else (row["absorbed"] or [row])[0]
    wrong = [field for field, ok in (row["agrees"] or {}).items() if not ok and field != "all"]
    said = []
    for field in wrong:
        key = "module" if field == "place" else field
        said.append(f"{field} is {answer.get(key)!r}, labelled {label.get(key)!r}")
    return said


def _untested(row: dict[str, Any]) -> list[str]:
    said = []
    if not row["counterfactuals"]:
        said.append("no counterfactual could be run for this cause")
    elif not specific(row):
        results = ", ".join(
            f"{c['intervention']}: {c['result']} (placebo {c['placebo'] or 'none'})"
            for c in row["counterfactuals"][:3]
        )
        said.append(f"no counterfactual is gone with its placebo unchanged: {results}")
    minimized = row.get("minimized")
    if minimized is not None and not minimized["checked"]:
        said.append(f"no repro: {minimized['why']}")
    return said


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
