"""The ledger: one L1 record per training step, append-only, flushed as it is written."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from workbench.numerics import jsonio

FIELDS = (
    "run_id", "step", "micro_step", "global_batch_id", "time", "rank", "world", "dp_rank",
    "tp_rank", "pp_rank", "dataset_version", "shard_id", "sample_ids", "model_commit",
    "tokenizer_hash", "config_hash", "batch_fingerprint", "batch_summary", "precision", "mode",
    "loss", "loss_components", "loss_scale", "loss_scale_previous", "growth_tracker",
    "learning_rates", "grad_norm", "grad_norm_is_scaled", "optimizers", "consecutive_skips",
    "schedulers_advanced", "rng_digest", "checkpoint_parent", "soft_gates", "first_bad_stage",
    "alerts", "order",
)  # fmt: skip
"""Every field of an L1 record; null where unknown."""


class Ledger:
    """Appends records to ``<directory>/<run_id>.ledger.jsonl`` and keeps the last ones.

    Args:
        directory: Where the ledger lies; made when it is missing.
        run_id: The run; a resumed run appends to its own ledger.
        window: How many records are kept in memory.
        suffix: Told apart from the ledgers of other ranks.
    """

    def __init__(self, directory: Path, run_id: str, window: int, suffix: str = "") -> None:
        self.path = directory / f"{run_id}{suffix}.ledger.jsonl"
        self.recent: deque[dict[str, Any]] = deque(maxlen=max(1, window))
        self._file: IO[str] | None = None

    def append(self, record: dict[str, Any]) -> None:
        """Write one record and flush it.

        Raises:
            OSError: The file cannot be written.
        """
        self.recent.append(record)
        line = jsonio.dumps(record) + "\n"
        if self._file is None or self._is_gone(self._file):
            self.close()
            self._file = self._open()
        try:
            self._file.write(line)
            self._file.flush()
        except OSError:
            self.close()  # what the disk did not take is not written again, half, later on
            raise

    def _open(self) -> IO[str]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("a", encoding="utf-8")
        if _is_torn(self.path):  # a killed run, or a full disk, left half a line
            file.write("\n")
        return file

    def _is_gone(self, file: IO[str]) -> bool:
        """Whether the file was removed or replaced while it was open (a cleaned directory)."""
        try:
            return not os.path.samestat(os.fstat(file.fileno()), self.path.stat())
        except OSError:
            return True

    def close(self) -> None:
        """Close the file; a later append opens it again."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # closing tries once more what could not be written
                file.close()


def _is_torn(path: Path) -> bool:
    """Whether a file ends within a line."""
    if not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def freeze_first_bad(directory: Path, run_id: str, content: dict[str, Any]) -> bool:
    """Write the run's first bad record; one that is there already is never overwritten.

    Args:
        directory: Where the ledger lies.
        run_id: The run.
        content: The record.

    Returns:
        Whether this was the first.

    Raises:
        OSError: The file cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{run_id}.first_bad.json"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(jsonio.dumps(content, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return True
