"""Hidden folders of bundles that were never published, because their process was killed.

A writer holds a lock on its folder for as long as it lives; the system lets go of it when the
process ends, however it ends. So a folder of this machine whose lock is free belongs to nobody.
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
from pathlib import Path
from typing import Final

_MOMENT: Final = 60.0
_HIDDEN: Final = re.compile(r"\.[A-Za-z0-9_.+-]+\.bundle\.(?P<host>[0-9a-f]{8})-[0-9a-f]{8}")


def hidden_name(stem: str) -> str:
    """A new name for a folder that becomes ``<stem>.bundle``; it says which machine made it."""
    return f".{stem}.bundle.{_host()}-{secrets.token_hex(4)}"


def hold(folder: Path) -> int | None:
    """Lock a folder for the life of this process; None where the file system has no locks."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def let_go(descriptor: int | None) -> None:
    """Give a lock back."""
    if descriptor is not None:
        os.close(descriptor)


def remove_leftovers(directory: Path) -> list[Path]:
    """Remove hidden folders whose process is certainly dead.

    Left alone are folders of another machine (its locks may not show here), folders that somebody
    holds, and everything that is not named as a writer names its folder.

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
        if found is None or found["host"] != _host() or path.is_symlink() or not path.is_dir():
            continue
        lock = hold(path)
        if lock is None:
            continue
        try:
            if _may_be_new(path):
                continue
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
        finally:
            let_go(lock)
    return removed


def _may_be_new(path: Path) -> bool:
    """Whether a folder was made this moment by somebody who is about to lock it."""
    return not any(path.iterdir()) and time.time() - path.stat().st_mtime < _MOMENT


def _host() -> str:
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]
