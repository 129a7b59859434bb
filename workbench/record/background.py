"""Writing evidence while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import torch

from workbench.evidence import pending


class BackgroundWriter:
    """Runs one write after the other, in the order given, beside training.

    The threads are no daemons: a process that ends by itself or by an exception is not gone before
    its evidence is complete. One that is killed leaves what the bundle's manifest lists.
    """

    def __init__(self) -> None:
        self._last: threading.Thread | None = None

    def run(self, path: Path, work: Callable[[], object]) -> None:
        """Do some work after all that was given before.

        Args:
            path: The bundle it writes; ``open_bundle`` in this process waits for it.
            work: The work; it handles its own errors.
        """
        before = self._last

        def write() -> None:
            if before is not None:
                before.join()
            with torch.no_grad():
                work()

        thread = threading.Thread(target=write, name="workbench-evidence", daemon=False)
        pending.note(path, thread)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is ending, or there are too many threads
            write()
            return
        self._last = thread

    def wait(self) -> None:
        """Wait until everything is written."""
        if self._last is not None:
            self._last.join()
            self._last = None
