"""Whether a step starts threads: a dispatch mode sees the ops of its own thread only."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def threads_seen() -> Iterator[list[str]]:
    """Note the names of threads that are started while it is active.

    ``threading.setprofile`` reaches every thread that Python starts, pools included; the note is
    taken at its first call, which also ends the profiling of that thread.
    """
    names: list[str] = []
    before = threading.getprofile()

    def first_call(frame: object, event: str, argument: object) -> None:
        import sys

        del frame, event, argument
        sys.setprofile(None)
        names.append(threading.current_thread().name)

    threading.setprofile(first_call)
    try:
        yield names
    finally:
        threading.setprofile(before)
