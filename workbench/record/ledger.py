"""The ledger: one L1 record per training step, append-only.

What is appended is written at once. Records of calm steps come in groups (``record/group.py``).
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench.checkpoints.ledgers import part_before
from workbench.evidence.presence import Presence
from workbench.numerics import jsonio
from workbench.record.slow_disk import Writes

FIELDS = (
    "run_id", "step", "micro_step", "global_batch_id", "time", "rank", "world", "dp_rank",
    "tp_rank", "pp_rank", "dataset_version", "shard_id", "sample_ids", "model_commit",
    "tokenizer_hash", "config_hash", "batch_fingerprint", "batch_summary", "precision", "mode",
    "loss", "loss_components", "loss_scale", "loss_scale_previous", "growth_tracker",
    "learning_rates", "grad_norm", "grad_norm_is_scaled", "optimizers", "consecutive_skips",
    "schedulers_advanced", "rng_digest", "checkpoint_parent", "soft_gates", "first_bad_stage",
    "alerts", "order", "reduce", "decision", "fingerprint",
)  # fmt: skip
"""Every field of an L1 record; null where unknown."""

_TOLD_AT = 2
_LOOK_S = 0.2


class Ledger:
    """Appends records to ``<directory>/<run_id>.ledger.jsonl`` and keeps the last ones.

    A record is on its way to the disk in one write when ``append`` returns: a process that is
    killed afterwards does not lose it. ``sync`` makes it last through a loss of power. Two runs of
    one name append to the same file, each line whole.

    Args:
        directory: Where the ledger lies; made when it is missing.
        run_id: The run; a resumed run appends to its own ledger.
        window: How many records are kept in memory.
        suffix: Told apart from the ledgers of other ranks.
        max_bytes: Most bytes of the file and of the one before it, ``<run_id>.ledger.1.jsonl``:
            at half of them the file becomes the one before. 0 never begins a new file. While
            another process holds the file, or it cannot be renamed, it goes on growing instead:
            training waits for nobody, and no record is lost.
    """

    def __init__(
        self, directory: Path, run_id: str, window: int, suffix: str = "", max_bytes: int = 0
    ) -> None:
        self.path = directory / f"{run_id}{suffix}.ledger.jsonl"
        self._window: deque[dict[str, Any] | bytes] = deque(maxlen=max(1, window))
        self.max_bytes = max_bytes
        self._file: io.FileIO | None = None
        self._look_at = 0.0  # when to see next whether the path still leads to the file
        self._stayed = 0  # how many records ago the file should have begun anew
        self._writes = Writes(self._write, max_bytes // 16 or 1 << 20)
        self._presence = Presence(directory, run_id)
        if directory.is_dir():
            with suppress(OSError):
                self._presence.begin()

    def append(self, record: dict[str, Any]) -> None:
        """Write one record.

        Raises:
            OSError: The file cannot be written. Or, once, after the record was written: the file
                could not begin anew and grows beyond its bound.
        """
        self._window.append(record)
        self._writes.put(jsonio.dump_line(record))

    @property
    def recent(self) -> list[dict[str, Any]]:
        """The last records."""
        return [jsonio.loads(one) if isinstance(one, bytes) else one for one in [*self._window]]

    def append_lines(self, lines: Sequence[bytes]) -> None:
        """Write several records, in one write where the bound of the file leaves room for them.

        Args:
            lines: The records as ``jsonio.dump_line`` encodes them.

        Raises:
            OSError: As ``append``; the records after one that could not be written are tried, too.
        """
        self._window.extend(lines)
        size = sum(map(len, lines))
        whole = not self.max_bytes or size < self.max_bytes // 16
        failed: OSError | None = None
        for data in [b"".join(lines)] if whole else lines:
            try:
                self._writes.put(data)
            except OSError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _write(self, line: bytes) -> None:
        file, why_it_stays = self._ready(len(line))
        try:
            written = file.write(line)
            if written != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        except OSError:
            self._close()  # half a line ends here: the next one begins on a line of its own
            raise
        # The second time in a row: another run of this name holds the file for a moment only
        if why_it_stays is not None and self._stayed == _TOLD_AT:
            raise OSError(
                f"{str(self.path)!r} cannot begin anew ({why_it_stays}), so it grows beyond the "
                f"{self.max_bytes:,} bytes of ledger_bytes; records are written, and it begins "
                "anew once that is possible"
            )

    def sync(self) -> None:
        """Have all records so far on the disk itself.

        Raises:
            OSError: The disk did not take them.
        """
        self._writes.drain()
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file once all is written; a later append opens it again."""
        self._writes.drain()
        self._close()

    def _close(self) -> None:
        self._presence.end()
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()

    def _ready(self, more: int) -> tuple[io.FileIO, str | None]:
        """The file to write to, and why it could not begin anew although it should have."""
        file, size = self._file, self._size()
        if file is None or size is None:
            self._close()
            self._file = file = self._open()
            size = os.fstat(file.fileno()).st_size  # another run may have written to it
        if not (self.max_bytes and size and size + more > self.max_bytes // 2):
            return file, None
        why_it_stays = self._begin_anew(file)
        if why_it_stays is not None:
            self._stayed += 1
            return file, why_it_stays
        self._stayed = 0
        self._close()
        self._file = self._open()
        return self._file, None

    def _size(self) -> int | None:
        """Bytes of the open file; None where it has to be opened.

        A removed file is seen at once. One that another run of this name has made the part before
        is seen within ``_LOOK_S``: until then records go into that part, where readers find them.
        """
        file = self._file
        if file is None:
            return None
        seen, now = os.fstat(file.fileno()), time.monotonic()
        if not seen.st_nlink:
            return None
        if now >= self._look_at:
            self._look_at = now + _LOOK_S
            if self._is_gone(file):
                return None
        return seen.st_size

    def _open(self) -> io.FileIO:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # that a run is alive is a courtesy to those who look
            self._presence.begin()
        if self.path.exists() and not self.path.is_file():  # a pipe would hold training up forever
            raise OSError(errno.EINVAL, "This is no regular file", str(self.path))
        file = io.FileIO(self.path, "a")
        if _is_torn(self.path):  # a killed run, or a full disk, left half a line
            file.write(b"\n")
        return file

    def _begin_anew(self, file: io.FileIO) -> str | None:
        """Make the file the one before; under a lock, since another run may have done so.

        Returns:
            Why it was not done, or None. The lock is never waited for: whoever holds it may be
            stopped, and the training step would stop with it.
        """
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "another process holds a lock on it"
        except OSError:
            pass  # a file system without locks: two runs of one name are rarer than one long run
        try:
            if not self._is_gone(file):
                os.fsync(file.fileno())
                self.path.replace(part_before(self.path))
        except OSError as error:
            with suppress(OSError):
                fcntl.flock(file.fileno(), fcntl.LOCK_UN)
            return f"{type(error).__name__}: {error}"
        return None

    def _is_gone(self, file: io.FileIO) -> bool:
        """Whether the file was removed or replaced while it was open (a cleaned directory)."""
        try:
            return not os.path.samestat(os.fstat(file.fileno()), self.path.stat())
        except OSError:
            return True


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
