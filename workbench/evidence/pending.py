"""Bundles that a thread of this process is still writing: whoever opens one waits for the whole.

Another process sees the true, smaller bundle that is there so far.
"""

from __future__ import annotations

import threading
from pathlib import Path

_WRITERS: dict[Path, threading.Thread] = {}


def note(path: Path, thread: threading.Thread) -> None:
    """Say that a thread writes the rest of a bundle; call before it is started."""
    for done in [one for one, writer in _WRITERS.items() if writer.ident and not writer.is_alive()]:
        _WRITERS.pop(done, None)
    _WRITERS[path.absolute()] = thread


def wait_for(path: Path) -> None:
    """Wait until no thread of this process writes a bundle any more; at once for any other."""
    if not _WRITERS:
        return
    writer = _WRITERS.get(path.absolute())
    if writer is not None and writer is not threading.current_thread() and writer.ident:
        writer.join()
