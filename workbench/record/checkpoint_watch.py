"""The recorder's part in trusting checkpoints: clean steps commit, an incident casts doubt.

Writing states and scanning happen off the training thread; a failure there is the recorder's own
and never reaches training.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from workbench.checkpoints import Registry
from workbench.checkpoints.states import CLEAN_STEPS, RECORDED
from workbench.evidence.presence import Presence

_EVERY: Final = 50
"""Steps after which the registry is told of clean steps when no checkpoint waits for them."""

_PATIENCE_S: Final = 1.0
"""Longest wait for another process that changes the states: a training step may wait for it."""

_NEAR: Final = 8
"""Checkpoints told of with an incident."""


class CheckpointWatch:
    """Tells a checkpoint registry what the recorder sees.

    Args:
        directory: Where training saves its checkpoints.
        clean_steps: Clean steps after a checkpoint before it may be committed.

    Attributes:
        proven_clean: The last step whose whole state was seen finite after its update; −1 before.
    """

    def __init__(self, directory: str | Path, clean_steps: int = CLEAN_STEPS) -> None:
        self.registry = Registry(directory, clean_steps)
        self.registry.patience = _PATIENCE_S
        self.proven_clean = -1
        self._told = -1
        self._waiting: int | None = None
        self._owed: deque[tuple[int, int, str]] = deque()  # incidents not told of yet
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="workbench-checkpoints")
        self._running: list[Future[object]] = []
        self._presence = Presence(self.registry.directory, RECORDED)
        self._begin()

    def _begin(self) -> None:
        """Tell those who list the checkpoints that somebody counts clean steps."""
        if self.registry.directory.is_dir():
            with suppress(OSError):
                self._presence.begin()

    def saved(self, path: str | Path, step: int) -> None:
        """A checkpoint was saved after a step: it is suspect, and is scanned in the background."""
        self._waiting = step
        self._begin()
        name = Path(path).name
        self._start(lambda: self.registry.saved(path, step))
        self._start(lambda: self.registry.scan([name]))

    def clean(self, step: int, proven: bool) -> None:
        """A step ended without an incident.

        Args:
            step: The step.
            proven: Whether parameters, buffers and optimizer state were all seen finite after it.
        """
        if proven:
            self.proven_clean = step
        waited = self._waiting
        due = step - self._told >= _EVERY
        if waited is not None and step >= waited + self.registry.clean_steps:
            due, self._waiting = True, None
        if due and self.registry.directory.is_dir():
            self._told = step
            self._start(lambda: self._clean(step))

    def incident(self, step: int, why: str) -> None:
        """A step tripped: what is newer than the last proven step becomes suspect, at once.

        Where the states cannot be changed now, they are told of it before any later clean step.
        """
        if not self.registry.directory.is_dir():
            return
        self._owed.append((step, self.proven_clean, why))
        self._waiting = step
        try:
            self.wait()
        finally:  # an earlier scan that failed does not make the incident undone
            self._tell_owed()

    def _clean(self, step: int) -> None:
        self._tell_owed()
        self.registry.clean(step)

    def _tell_owed(self) -> None:
        while self._owed:
            self.registry.incident(*self._owed[0])
            self._owed.popleft()

    def seen(self) -> dict[str, Any]:
        """The newest committed checkpoint, and the last ones with their states.

        Raises:
            CheckpointError: The states file is damaged.
        """
        if not self.registry.directory.is_dir():
            return {"latest": None, "near": []}
        rows = [
            {"name": one.checkpoint.name, "state": one.state, "step": one.entry.step}
            for one in self.registry.known()
        ]
        committed = [row for row in rows if row["state"] == "committed"]
        return {"latest": committed[-1] if committed else None, "near": rows[-_NEAR:]}

    def close(self) -> None:
        """Wait, and count no more steps; raises as ``wait`` does."""
        try:
            self.wait()
        finally:
            self._presence.end()

    def wait(self) -> None:
        """Wait for scans and writes to end.

        Raises:
            CheckpointError: The states file is damaged.
            OSError: The directory cannot be written.
        """
        running, self._running = self._running, []
        failed = [error for one in running if (error := one.exception()) is not None]
        if failed:
            raise failed[0]

    def _start(self, work: Callable[[], object]) -> None:
        done = [one for one in self._running if one.done()]
        self._running = [one for one in self._running if not one.done()]
        self._running.append(self._pool.submit(work))
        for one in done:
            one.result()
