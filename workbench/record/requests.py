"""Requests to a live run: ``workbench capture`` asks for a bundle of the next step."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from workbench.errors import CannotRunError, StrictJsonError, UsageError
from workbench.evidence.presence import present
from workbench.numerics import jsonio

REQUEST_FILE: Final = "capture-request.json"
_MOST: Final = 64 * 1024
_WHY: Final = 500


def ask(directory: str | Path, why: str, run_id: str | None = None) -> Path:
    """Ask a live run for a bundle of its next step.

    Args:
        directory: Where the run writes its ledger.
        why: The reason; it goes into the bundle.
        run_id: Which run; None asks whichever run of the directory steps next.

    Returns:
        The request; it is gone once a run has taken it.

    Raises:
        UsageError: No such directory, no reason, or no run has a ledger there.
        CannotRunError: The run has ended, or was killed.
        OSError: The directory cannot be written.
    """
    root = Path(directory)
    if not why.strip():
        raise UsageError(
            f"No reason was given for capturing a step of {str(root)!r}, and whoever opens the "
            "bundle will ask for one. Give it with --why."
        )
    ledgers = [path.name.partition(".")[0] for path in sorted(root.glob("*.ledger.jsonl"))]
    if not ledgers or (run_id is not None and run_id not in ledgers):
        wanted = "a run" if run_id is None else f"the run {run_id!r}"
        raise UsageError(
            f"{str(root)!r} has no ledger of {wanted}, so nobody would answer the request. Its "
            f"ledgers: {', '.join(map(repr, ledgers)) or 'none'}. Give the directory that the "
            "recorder writes to."
        )
    if present(root, run_id) is False:
        which = "runs" if run_id is None and len(ledgers) > 1 else "run"
        names = ", ".join(map(repr, [run_id] if run_id is not None else ledgers[:5]))
        raise CannotRunError(
            f"No recorder is alive in {str(root)!r}: the {which} {names} ended or was killed, so "
            "nobody would answer, and nothing was asked. Ask while it trains; to have a bundle of "
            "a certain step, give its train_step or step a reason with capture=."
        )
    target = root / REQUEST_FILE
    beside = root / f".{REQUEST_FILE}.{os.getpid()}.tmp"
    content = {"why": why.strip()[:_WHY], "run_id": run_id, "time": time.time()}
    beside.write_text(jsonio.dumps(content) + "\n", encoding="utf-8")
    beside.replace(target)
    return target


def waits(path: str) -> bool:
    """Whether there is a request file; cheaper than ``take``, which takes it.

    Args:
        path: ``REQUEST_FILE`` in the run's directory.
    """
    return os.access(path, os.F_OK)


def take(directory: Path, run_id: str) -> str | None:
    """Take a request, if there is one for this run; the reason, or None.

    Args:
        directory: Where the run writes its ledger.
        run_id: This run.

    Raises:
        OSError: The request is there and cannot be read.
    """
    path = directory / REQUEST_FILE
    try:
        size = path.stat().st_size
    except OSError:  # the usual case: none
        return None
    request = _read(path) if size <= _MOST else None
    if request is not None and request.get("run_id") not in (None, run_id):
        return None
    claimed = directory / f".{REQUEST_FILE}.{run_id}.taken"
    try:
        path.rename(claimed)  # only one run gets it
    except FileNotFoundError:
        return None
    with suppress(OSError):
        claimed.unlink()
    if request is None:
        return "a capture was requested; the request could not be read"
    return str(request.get("why") or "a capture was requested")[:_WHY]


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = jsonio.loads(path.read_bytes())
    except (StrictJsonError, FileNotFoundError):
        return None
    return content if isinstance(content, dict) else None
