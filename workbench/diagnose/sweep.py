"""Sweep: one recorded step under many conditions, each cell in a process of its own, one table."""

from __future__ import annotations

import hashlib
import itertools
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from workbench.diagnose.cell import Task
from workbench.diagnose.dependence import condition_words, finite_sentence, plain
from workbench.diagnose.mask_sets import relation
from workbench.diagnose.sweep_conclusion import conclusion
from workbench.diagnose.sweep_running import Running, anywhere, result_of
from workbench.diagnose.sweep_tables import cell_row, tables
from workbench.errors import BundleError, UsageError
from workbench.evidence import Bundle, open_bundle
from workbench.evidence.table import write_table
from workbench.numerics import jsonio
from workbench.replay.devices import nearest
from workbench.step.locate import step_reference

if TYPE_CHECKING:
    from workbench.evidence import Conditions, Table

SCHEMA = "workbench.sweep/1"
CELL_SCHEMA = "workbench.sweep_cell/1"
_LISTS = ("keep_samples", "float32_modules")
"""Conditions whose values have commas in them: on the command line ``/`` stands between two."""

Progress = Callable[[str], None]
Data = dict[str, Any]


@dataclass
class Cell:
    """One set of conditions and what came of it.

    Attributes:
        changed: Conditions that differ from the original ones; empty for the original.
        digest: Digest of bundle, code, conditions and how they were run.
        data: What `cell.run_cell` returned.
        mask: Its non-finite elements against those of the original cell.
        kept: Whether it was read from an earlier sweep.
    """

    changed: Data
    digest: str
    data: Data = field(default_factory=dict)
    mask: str = "unknown"
    kept: bool = False

    @property
    def name(self) -> str:
        """Its conditions in words."""
        return condition_words(self.changed) if self.changed else "original"


@dataclass
class Sweep:
    """The table of a sweep; the original conditions are its first cell.

    Attributes:
        bundle: Digest of the bundle.
        cells: The cells, in the order asked for.
        findings: What the finite diagnostic cells show, one entry each.
    """

    bundle: str
    cells: list[Cell]
    findings: list[Data]

    @property
    def rows(self) -> list[Data]:
        """One row per cell."""
        return [cell_row(number, cell) for number, cell in enumerate(self.cells)]

    @property
    def conclusion(self) -> str:
        """What was learnt, in one sentence, also where no cell came out finite."""
        return conclusion(self.rows, self.findings)

    @property
    def tables(self) -> dict[str, Table]:
        """``cells``, ``runs`` (one row per repeat) and ``stages`` (one row per cell and stage)."""
        return tables(self.cells)

    def to_data(self) -> Data:
        """Return it as ``workbench.sweep/1``."""
        return {
            "schema": SCHEMA,
            "bundle": self.bundle,
            "cells": self.rows,
            "findings": self.findings,
            "conclusion": self.conclusion,
        }

    def save(self, directory: Path) -> Path:
        """Write the tables and ``sweep.json``; returns the directory."""
        for name, table in self.tables.items():
            write_table(directory, name, table)
        _write(directory / "sweep.json", self.to_data())
        return directory


def each_alone(settings: Mapping[str, Sequence[Any]]) -> list[Data]:
    """One cell per value: one change at a time."""
    return [{key: value} for key, values in settings.items() for value in values]


def grid(settings: Mapping[str, Sequence[Any]]) -> list[Data]:
    """Every combination of the values given."""
    keys = list(settings)
    return [
        dict(zip(keys, chosen, strict=True)) for chosen in itertools.product(*settings.values())
    ]


def parse_values(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Several ``key=value,value`` as on the command line, by key.

    Values of ``keep_samples`` and ``float32_modules`` are lists with commas; they are separated by
    ``/``.

    Raises:
        UsageError: An unknown key, or a value that is not legal for it.
    """
    from workbench.evidence import parse_setting

    found: dict[str, list[Any]] = {}
    for text in texts:
        key, _, values = text.partition("=")
        between = "/" if key.strip().replace("-", "_") in _LISTS else ","
        for value in values.split(between):
            name, parsed = parse_setting(f"{key}={value}" if "=" in text else text)
            found.setdefault(name, []).append(parsed)
    return found


def run_sweep(
    bundle: Bundle | str | Path,
    cells: Iterable[Mapping[str, Any]],
    step: Any = None,
    trust: str | None = None,
    *,
    repeats: int = 1,
    jobs: int = 1,
    resume: bool = False,
    trace: bool = False,
    until: str | None = None,
    directory: Path | None = None,
    executor: Executor | None = None,
    isolated: bool = False,
    timeout_s: float | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Run a recorded step under many conditions.

    Args:
        bundle: A bundle or its path.
        cells: Changes of conditions, each by name; the original ones are always run too.
        step: The training step; without an executor it must be one that another process can find.
        trust: As ``Replay`` takes it.
        repeats: Runs per cell.
        jobs: Cells at a time; threads of one cell are not limited by it.
        resume: Take finished cells of an earlier sweep of the same bundle, code and conditions.
        trace: Name the origin of every cell by one more, traced run.
        until: Last stage to run; None as ``Replay.run``.
        directory: Where finished cells are kept; None for ``<bundle>.findings/sweep``.
        executor: Runs the cells instead of a process per cell; it is not shut down. Any of
            ``concurrent.futures``, Dask's ``Client.get_executor()`` among them.
        isolated: Give each cell a process of its own also where the executor takes it, so that a
            cell which takes its process down costs no worker.
        timeout_s: Longest time of one cell in seconds, where it has a process of its own.
        progress: Called with a sentence as each cell ends.

    Returns:
        The table and what it shows. A cell that died or raised is a row like the others.

    Raises:
        UsageError: An unknown condition, or a value that is not legal.
    """
    opened = bundle if isinstance(bundle, Bundle) else open_bundle(bundle)
    if repeats < 1 or jobs < 1:
        raise UsageError(
            f"A sweep was asked for repeats={repeats!r} and jobs={jobs!r}, so it would run "
            "nothing. Give at least 1 of each."
        )
    how = {"repeats": repeats, "trace": trace, "until": until}
    found = _cells(opened, cells, how, step)
    store = _Store(directory or opened.findings_dir / "sweep", opened.digest)
    if resume:
        for cell in found:
            store.load(cell)
    say = progress or (lambda sentence: None)
    waiting = [cell for cell in found if not cell.kept]
    where = str(opened.path.absolute())
    with Running(executor, jobs, timeout_s, isolated) as submit:
        futures = {
            submit(Task(where, anywhere(step), trust, _arguments(cell, how))): cell
            for cell in waiting
        }
        for done, future in enumerate(as_completed(futures), start=1):
            cell = futures[future]
            cell.data = result_of(future)
            store.keep(cell)
            say(f"{done:,} of {len(waiting):,}: {cell.name}: {cell.data['result']}")
    original = found[0].data.get("masks")
    for cell in found:
        cell.mask = relation(original, cell.data.get("masks")) if cell.data["runs"] else "unknown"
    return Sweep(opened.digest, found, [f for cell in found if (f := finding(cell)) is not None])


def finding(cell: Cell) -> Data | None:
    """What a diagnostic cell with a finite run shows; None for others."""
    after = cell.data.get("original_after")
    if after is None or not cell.changed:
        return None
    runs = cell.data["runs"]
    finite = sum(run["tensor"] is None for run in runs)
    fails = after["tensor"] is not None
    if not fails and cell.data["result"] in ("unchanged", "appears"):
        return None  # the record is finite as well
    idle = {item["key"] for run in runs for item in run["without_effect"]}
    return {
        "changed": plain(cell.changed),
        "sentence": finite_sentence(cell.changed, fails, idle, (finite, len(runs))),
        "establishes": "The failure depends on these conditions." if fails else "Nothing.",
        "does_not_establish": "That they are its cause, or that the model is repaired.",
        "original_after": {key: after[key] for key in ("stage", "tensor", "loss", "verdict")},
    }


# -- the cells ----------------------------------------------------------------------------------


def _cells(
    bundle: Bundle, wanted: Iterable[Mapping[str, Any]], how: Mapping[str, Any], step: Any
) -> list[Cell]:
    """Check all conditions before anything runs; the original first, doubles left out."""
    base = nearest(bundle.conditions)
    code = _code_digest(bundle, step)
    found: dict[str, Cell] = {}
    for changes in ({}, *wanted):
        conditions = base.replace(**dict(changes))
        digest = _digest(bundle.digest, code, conditions, how)
        found.setdefault(digest, Cell(base.changes(conditions), digest))
    return list(found.values())


def _digest(bundle: str, code: str, conditions: Conditions, how: Mapping[str, Any]) -> str:
    identity = {
        "bundle": bundle,
        "code": code,
        "conditions": conditions.as_dict(),
        "how": dict(how),
        "torch": torch.__version__,
    }
    return hashlib.sha256(jsonio.dumps(identity).encode()).hexdigest()


def _code_digest(bundle: Bundle, step: Any) -> str:
    """What is known of the step's code: a sweep of other code is not taken up again."""
    if isinstance(step, str):
        path = Path(step.rpartition(":")[0])
        text = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        return f"{step}:{text}"
    if step is None:
        reference = bundle.manifest.step_reference
        return f"{reference.reference}:{reference.digest}"
    known = step_reference(object.__new__(step) if isinstance(step, type) else step)
    return f"{known.get('reference')}:{known.get('digest')}"


def _arguments(cell: Cell, how: Mapping[str, Any]) -> Data:
    return {"conditions": plain(cell.changed), **how}


class _Store:
    """Finished cells on disk, one file each; a place that cannot be written costs only a resume."""

    def __init__(self, directory: Path, bundle: str) -> None:
        self._directory = directory / "cells"
        self._bundle = bundle

    def _path(self, cell: Cell) -> Path:
        return self._directory / f"{cell.digest[:32]}.json"

    def load(self, cell: Cell) -> None:
        path = self._path(cell)
        if not path.is_file():
            return
        try:
            document = jsonio.loads(path.read_bytes())
            if (document["schema"], document["digest"]) != (CELL_SCHEMA, cell.digest):
                return
            kept = Cell(cell.changed, cell.digest, document["data"])
            tables([kept])
            relation(kept.data["masks"], kept.data["masks"])
        except (OSError, BundleError, KeyError, TypeError, ValueError, AttributeError, zlib.error):
            return  # damaged: it is run again
        cell.data, cell.kept = kept.data, True

    def keep(self, cell: Cell) -> None:
        if not cell.data["runs"]:
            return  # died, stopped or refused: run again next time
        document = {"schema": CELL_SCHEMA, "bundle": self._bundle, "digest": cell.digest}
        try:
            _write(self._path(cell), document | {"data": cell.data})
        except OSError:
            return


def _write(path: Path, data: Data) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(jsonio.dumps(data, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def cells_of(settings: Mapping[str, Sequence[Any]], *, combine: bool) -> Iterator[Data]:
    """The cells of settings: every combination, or one change at a time."""
    yield from grid(settings) if combine else each_alone(settings)
