"""Whether a recorder is at work in a folder: a lock that it holds for as long as its process lives.

The system lets go of the lock when the process ends, however it ends: a killed run does not look
alive. Record locks are used, which a forked data loader worker does not inherit. One file serves a
folder: each run has a stretch of it, and each of its processes a byte there.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
import weakref
import zlib
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

MARK: Final = ".workbench-recorders"
_STRETCH: Final = 1 << 32
_TRIES: Final = 3
_PAUSE_S: Final = 0.01


@dataclass
class _Held:
    """A file this process holds bytes of; a second descriptor, when closed, would free them."""

    descriptor: int
    pid: int
    runs: Counter[str] = field(default_factory=Counter)


_held: dict[str, _Held] = {}


class Presence:
    """Tells other processes that this one records into a folder.

    Args:
        directory: The folder.
        run: The run's name.
    """

    def __init__(self, directory: Path, run: str) -> None:
        self._path = directory / MARK
        self._run = run
        self._end: weakref.finalize[..., Presence] | None = None

    def begin(self) -> None:
        """Hold the lock; where the file system has none to give, nobody is told anything.

        Raises:
            OSError: The file cannot be made.
        """
        path = str(self._path.absolute())
        if self._end is None and _take(path, self._run):
            self._end = weakref.finalize(self, _let_go, path, self._run)

    def end(self) -> None:
        """Let go of the lock; the file stays, since another run may hold it."""
        end, self._end = self._end, None
        if end is not None:
            end()


def present(directory: Path, run: str | None = None) -> bool | None:
    """Whether a recorder is alive in a folder.

    Args:
        directory: The folder.
        run: Only this run; None asks for any.

    Returns:
        True or False; None where no recorder has left a sign that can be read, as on a file system
        without locks.
    """
    path = directory / MARK
    held = _held.get(str(path.absolute()))
    if held is not None and held.pid == os.getpid() and (run is None or held.runs[run]):
        return True
    if held is not None:  # opening it here and closing it would free the runs of this process
        return _is_held(held.descriptor, run)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return _is_held(descriptor, run) if regular else None
    finally:
        os.close(descriptor)


def _is_held(descriptor: int, run: str | None) -> bool | None:
    length, start = (0, 0) if run is None else (_STRETCH, _start(run))
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, length, start)
    except (BlockingIOError, PermissionError):
        return True
    except OSError:
        return None
    fcntl.lockf(descriptor, fcntl.LOCK_UN, length, start)
    return False


def _take(path: str, run: str) -> bool:
    held = _held.get(path)
    if held is None or held.pid != os.getpid():
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        held = _Held(os.open(path, flags, 0o644), os.getpid())
    locked = True if held.runs[run] else _lock(held.descriptor, run)
    if locked:
        held.runs[run] += 1
        _held[path] = held
    elif not held.runs.total():
        os.close(held.descriptor)
        if locked is None:  # without locks the file would say that nobody is here
            with suppress(OSError):
                Path(path).unlink()
    return bool(locked)


def _lock(descriptor: int, run: str) -> bool | None:
    """Lock this process's byte; whether it is locked, None where the file system has no locks."""
    for attempt in range(_TRIES):
        if attempt:  # somebody who looks holds the stretch for a moment
            time.sleep(_PAUSE_S)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _start(run) + os.getpid())
        except (BlockingIOError, PermissionError):
            continue
        except OSError:
            return None
        return True
    return False


def _let_go(path: str, run: str) -> None:
    held = _held.get(path)
    if held is None or held.pid != os.getpid():
        return
    held.runs[run] -= 1
    if not held.runs.total():
        del _held[path]
        os.close(held.descriptor)
    elif not held.runs[run]:
        with suppress(OSError):
            fcntl.lockf(held.descriptor, fcntl.LOCK_UN, 1, _start(run) + os.getpid())


def _start(run: str) -> int:
    """Where a run's stretch of the file begins; files need not be so long to be locked there."""
    return (zlib.crc32(run.encode("utf-8", "replace")) & 0x3FFF_FFFF) * _STRETCH
