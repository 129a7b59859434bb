"""Hidden folders of bundles that were never published, because their process was killed.

A writer holds a lock on its folder for as long as it lives; the system lets go of it when the
process ends, however it ends. So a folder that a writer of this machine has marked and whose lock
is free belongs to nobody.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import secrets
import shutil
import time
import uuid
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

MARKER: Final = ".workbench-writer"
"""A file in a hidden folder: a writer made it, and holds its lock while it lives."""
_MACHINE: Final = (Path("/proc/sys/kernel/random/boot_id"), Path("/etc/machine-id"))
_PATIENCE_S: Final = 1.0
_PAUSE_S: Final = 0.01
_TRIES: Final = 2
_HIDDEN: Final = re.compile(r"\.[A-Za-z0-9_.+-]+\.bundle\.(?P<host>[0-9a-f]{8})-[0-9a-f]{8}")


def hidden_name(stem: str) -> str:
    """A new name for a folder that becomes ``<stem>.bundle``; it says which machine made it."""
    return f".{stem}.bundle.{_host()}-{secrets.token_hex(4)}"


def begin(directory: Path, stem: str) -> tuple[Path, int | None]:
    """Make a folder for a bundle, lock it for the life of this process, and mark it.

    Args:
        directory: Where bundles are kept.
        stem: The bundle will be ``<stem>.bundle``.

    Returns:
        The folder, and its lock. Without a lock, where the file system has none, it is not marked
        either: nobody will ever take it for a leftover.

    Raises:
        OSError: The disk does not take it; nothing stays.
    """
    for _ in range(_TRIES):
        folder = directory / hidden_name(stem)
        folder.mkdir()
        lock = hold(folder, _PATIENCE_S)
        if lock is None:  # somebody holds or removed it, or there are no locks here
            with suppress(OSError):
                folder.rmdir()
            continue
        try:
            (folder / MARKER).write_text(_mark(folder), encoding="ascii")
        except OSError:
            let_go(lock)
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder, lock
    folder = directory / hidden_name(stem)
    folder.mkdir()
    return folder, None


def unmark(folder: Path) -> None:
    """Take the mark away, just before a folder becomes a bundle."""
    (folder / MARKER).unlink(missing_ok=True)


def hold(folder: Path, patience: float = 0.0) -> int | None:
    """Lock a folder for the life of this process.

    Args:
        folder: The folder.
        patience: Seconds to try again while somebody holds it: a cleaner that looks at it does so
            for a moment.

    Returns:
        The lock; None where somebody holds it, it is gone, or the file system has no locks.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                return descriptor
        except BlockingIOError:
            if time.monotonic() < end:
                time.sleep(_PAUSE_S)
                continue
        except OSError:
            pass
        os.close(descriptor)
        return None


def let_go(descriptor: int | None) -> None:
    """Give a lock back."""
    if descriptor is not None:
        os.close(descriptor)


def remove_leftovers(directory: Path) -> list[Path]:
    """Remove hidden folders whose process is certainly dead.

    Left alone are folders of another machine, or of this one before it was started anew (locks of
    another machine may not show here), folders that somebody holds, and everything that a writer
    has not named and marked as its own.

    Args:
        directory: Where bundles are kept.

    Returns:
        What was removed.
    """
    removed: list[Path] = []
    if not directory.is_dir():
        return removed
    for path in sorted(directory.iterdir()):
        found = _HIDDEN.fullmatch(path.name)
        if found is None or found["host"] != _host() or not _is_marked(path):
            continue
        lock = hold(path)
        if lock is None:
            continue
        try:
            if not _is_marked(path):  # it became a bundle meanwhile
                continue
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
        finally:
            let_go(lock)
    return removed


def _is_marked(path: Path) -> bool:
    """Whether a writer on this machine made a folder."""
    marker = path / MARKER
    try:
        if path.is_symlink() or marker.is_symlink() or not marker.is_file():
            return False
        expected = _mark(path).encode("ascii")
        with marker.open("rb") as file:
            return file.read(len(expected) + 1) == expected
    except (OSError, UnicodeError):
        return False


def _mark(folder: Path) -> str:
    return f"{folder.name} {_machine()}\n"


def _host() -> str:
    return _machine()[:8]


@cache
def _machine() -> str:
    """A digest that two machines do not share, though they have one name and one disk.

    The system's start has a random identity of its own, where the system tells it.
    """
    for path in _MACHINE:
        try:
            told = path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeError):
            continue
        if told:
            break
    else:
        told = f"{uuid.getnode():012x}"
    return hashlib.sha256(f"{platform.node()}\0{told}".encode("utf-8", "replace")).hexdigest()
