"""Writes that a training step does not wait for where the disk is slow.

A write that takes no time is made at once, so that what a step said is on its way to the disk when
the step ends. After one that took long the next ones wait in memory, in order, and a thread makes
them, until the disk is fast again: a step waits for one slow write, not for each.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

_LONG_S: Final = 0.02
"""Seconds of a write from which on the disk is slow."""
_MOST_BYTES: Final = 64 * 2**20
"""Bytes that wait at most; then a step waits rather than that anything is lost."""


class Writes:
    """Makes writes one after the other.

    Args:
        write: Makes one; it may raise ``OSError``.
        together: Bytes up to which writes that waited are made as one.
    """

    def __init__(self, write: Callable[[bytes], None], together: int) -> None:
        self._write = write
        self._together = together
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._waiting: deque[bytes] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._slow = False
        self._error: OSError | None = None

    def put(self, data: bytes) -> None:
        """Make a write, or have it made after those that wait.

        Raises:
            OSError: This write failed, or one that was made beside training since the last call.
        """
        if self._process != os.getpid():
            self._reset()  # what waits in a forked process is written by its parent
        # a thread that is begun when the interpreter ends would not be waited for
        if not self._slow or not threading.main_thread().is_alive():
            self.drain()
            self._timed(data)
        else:
            with self._lock:
                self._waiting.append(data)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name="workbench-ledger")
                    self._thread.start()
            if sum(map(len, self._waiting)) > _MOST_BYTES:
                self.drain()
        self._raise()

    def drain(self) -> None:
        """Wait until nothing waits."""
        thread = self._thread
        if thread is not None and self._process == os.getpid():
            thread.join()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _timed(self, data: bytes) -> None:
        began = time.monotonic()
        try:
            self._write(data)
        except OSError as error:
            self._error = error
        self._slow = time.monotonic() - began >= _LONG_S

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                some = [self._waiting.popleft()]
                size = len(some[0])
                while self._waiting and size + len(self._waiting[0]) <= self._together:
                    some.append(self._waiting.popleft())
                    size += len(some[-1])
            self._timed(b"".join(some))
