"""Run incident files through the zoo in one pool of processes, and say where answers differ."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from workbench.diagnose.zoo import read_labels, run_zoo

HERE = Path(__file__).resolve().parent
FLAT = ("step", "stage", "op", "where", "module", "autograd_node", "forward_op", "cause")


def incident_files(folder: Path) -> list[Path]:
    """The incident files of a folder that also holds tests."""
    return sorted(
        p for p in folder.glob("*.py") if not p.name.startswith(("_", ".", "test_", "conftest"))
    )


def labels_of(folder: Path) -> dict[str, dict[str, Any]]:
    return read_labels(folder / "labels.json")


def copy_incidents(source: Path, target: Path, paths: Iterable[Path] | None = None) -> Path:
    """Copy incident files and labels to a folder of their own."""
    target.mkdir(parents=True, exist_ok=True)
    for path in paths if paths is not None else incident_files(source):
        shutil.copy(path, target / path.name)
    if (source / "labels.json").is_file():
        shutil.copy(source / "labels.json", target / "labels.json")
    return target


def run_folder(folder: Path) -> dict[str, Any]:
    """Run a folder of incidents; one process for each core that this test run has."""
    workers = 1 if "PYTEST_XDIST_WORKER" in os.environ else min(2, os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        return run_zoo(folder, executor=pool)


def disagreements(row: dict[str, Any]) -> set[str]:
    """The compared fields in which an answer is not the label's."""
    if row["error"] is not None:
        return {"error"}
    return {field for field, same in row["agrees"].items() if not same and field != "all"}


def answer(row: dict[str, Any]) -> dict[str, Any]:
    """What an incident's row says, without what names of files and folders may change."""
    kept = {name: row[name] for name in ("tripped", "caught", *FLAT, "verdict", "error")}
    for listed in ("origins", "absorbed"):
        kept[listed] = [{name: one[name] for name in ("kind", *FLAT)} for one in row[listed]]
    return kept
