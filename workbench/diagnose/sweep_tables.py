"""A sweep as rows and columnar tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from workbench.diagnose.dependence import plain
from workbench.evidence.table import Table, table_from_rows

if TYPE_CHECKING:
    from workbench.diagnose.sweep import Cell

_NO_RUN: dict[str, Any] = dict.fromkeys(("verdict", "stage", "tensor", "counts", "loss"))


def cell_row(number: int, cell: Cell) -> dict[str, Any]:
    """One cell as a row: its first run, and whether the repeats agree with it."""
    runs = cell.data["runs"]
    first = runs[0] if runs else _NO_RUN
    origin = cell.data["origin"] or {}
    idle = {item["key"]: item["why"] for item in first.get("without_effect", ())}
    return {
        "cell": number,
        "name": cell.name,
        "changed": plain(cell.changed),
        "diagnostic": bool(cell.changed),
        "result": cell.data["result"],
        "verdict": first["verdict"],
        "stage": first["stage"],
        "tensor": first["tensor"],
        "counts": first["counts"],
        "loss": first["loss"],
        "mask": cell.mask,
        "origin": cell.data["origin"],
        "op": origin.get("op"),
        "where": origin.get("where"),
        "repeats": len(runs),
        "same_each_time": _agree(runs),
        "without_effect": idle,
        "seconds": sum(run["seconds"] for run in runs),
        "error": cell.data["error"],
        "kept": cell.kept,
        "digest": cell.digest,
    }


def _agree(runs: Sequence[dict[str, Any]]) -> bool | None:
    if len(runs) <= 1:
        return None
    return len({(run["stage"], run["tensor"], run["loss_bits"]) for run in runs}) == 1


def tables(cells: Sequence[Cell]) -> dict[str, Table]:
    """The tables ``cells``, ``runs`` and ``stages``."""
    rows = []
    for number, cell in enumerate(cells):
        row = cell_row(number, cell)
        del row["origin"], row["counts"]
        row["without_effect"] = list(row["without_effect"])
        row["loss"] = float("nan") if row["loss"] is None else float(row["loss"])
        rows.append(row)
    runs = [
        {
            "cell": number,
            "repeat": repeat,
            "result": run["result"],
            "stage": run["stage"],
            "tensor": run["tensor"],
            "loss": float("nan") if run["loss"] is None else float(run["loss"]),
            "loss_bits": run["loss_bits"],
            "seconds": float(run["seconds"]),
        }
        for number, cell in enumerate(cells)
        for repeat, run in enumerate(cell.data["runs"])
    ]
    stages = [
        {"cell": number, "stage": stage, "status": status}
        for number, cell in enumerate(cells)
        for stage, status in (cell.data["runs"][0]["stages"] if cell.data["runs"] else {}).items()
    ]
    return {
        "cells": table_from_rows(rows),
        "runs": table_from_rows(runs),
        "stages": table_from_rows(stages),
    }
