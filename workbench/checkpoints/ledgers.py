"""What a run's ledger tells of its checkpoints: which steps were clean."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from workbench.errors import CheckpointError, StrictJsonError, UsageError
from workbench.numerics import jsonio

_LONGEST: Final = 16 * 2**20
TAIL: Final = 64 * 2**20
"""Bytes read from a ledger's end."""


@dataclass(frozen=True)
class CleanSteps:
    """What a ledger says.

    Attributes:
        last_step: The last step recorded, or None.
        last_incident: The last step that tripped or raised an alert, or None.
    """

    last_step: int | None = None
    last_incident: int | None = None


def clean_steps_of(path: str | Path) -> CleanSteps:
    """Read the end of a ledger.

    Args:
        path: A ``*.ledger.jsonl`` file, or a directory that holds just one.

    Raises:
        UsageError: No ledger there, or several.
        CheckpointError: A line of it is damaged.
    """
    file = _ledger(Path(path))
    records = _records(file)
    steps = [int(r["step"]) for r in records if isinstance(r.get("step"), int)]
    incidents = [
        int(r["step"]) for r in records if isinstance(r.get("step"), int) and _is_incident(r)
    ]
    return CleanSteps(max(steps, default=None), max(incidents, default=None))


def _is_incident(record: Mapping[str, Any]) -> bool:
    decision = record.get("decision")  # finite on this rank, and not on another
    elsewhere = isinstance(decision, Mapping) and decision.get("stage")
    return bool(record.get("first_bad_stage") or record.get("alerts") or elsewhere)


def first_record(path: Path) -> dict[str, Any] | None:
    """The first record of a ledger, which says what the run started from; None where it has none.

    Raises:
        CheckpointError: It is damaged.
    """
    if not path.is_file():  # a pipe would be waited for
        return None
    with path.open("rb") as file:
        line = file.readline(_LONGEST)
    if not line.endswith(b"\n"):
        return None  # nothing was written to its end yet
    try:
        record = jsonio.loads(line)
    except StrictJsonError as error:
        raise CheckpointError(
            f"The first line of the ledger {path.name!r} cannot be read ({error}), so it is not "
            "known what the run started from. Move the file away, or repair the line."
        ) from error
    return record if isinstance(record, dict) else None


def _ledger(path: Path) -> Path:
    if path.is_file():
        return path
    found = sorted(p for p in path.glob("*.ledger.jsonl") if p.is_file())
    if len(found) != 1:
        names = ", ".join(repr(p.name) for p in found[:5]) or "none"
        raise UsageError(
            f"{str(path)!r} is not one ledger: it has {names}. Give the run's "
            "'<run>.ledger.jsonl', so that it is known which steps were clean."
        )
    return found[0]


def part_before(path: Path) -> Path:
    """Where the older part of a ledger lies, if it has one."""
    return path.with_name(path.name.removesuffix(".jsonl") + ".1.jsonl")


def _tail(path: Path, most: int) -> tuple[bytes, bool]:
    """The last bytes of a file, and whether they are all of it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - most))
        return file.read(most), size <= most


def _records(path: Path) -> deque[dict[str, Any]]:
    data, all_of_it = _tail(path, TAIL)
    if all_of_it and part_before(path).is_file():
        before, all_of_it = _tail(part_before(path), TAIL - len(data))
        data = before + data
    lines = data.split(b"\n")
    whole = lines if all_of_it else lines[1:]
    records: deque[dict[str, Any]] = deque()
    for number, line in enumerate(whole[:-1]):  # what follows the last newline was cut off
        if not line.strip():
            continue
        try:
            record = jsonio.loads(line)
        except StrictJsonError as error:
            if number == len(whole) - 2:
                continue
            raise CheckpointError(
                f"The ledger {str(path)!r} has a damaged line ({error}), so it is not known which "
                "steps were clean. Restore it, or scan without --ledger."
            ) from error
        if isinstance(record, dict):
            records.append(record)
    return records
