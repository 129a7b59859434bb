"""Records of calm steps, written to the ledger in groups.

What a step's record is made of is noted at its end; fingerprint, digest and JSON are worked out
for many steps at once, which costs a third of doing it step by step: the code stays in the
processor's cache. A record waits until a step ends ``HOLD_S`` after the first that waits, until
anything else is written, or ``STALL_S`` where training stands still. Whoever leaves without the
interpreter's exit (SIGKILL, ``os._exit``) loses at most these last calm records.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from workbench.record.calm_lines import CalmLines

if TYPE_CHECKING:
    from workbench.record.quiet_step import QuietStep
    from workbench.record.recorder import Recorder

HOLD_S: Final = 0.05
"""Seconds that a record waits at most while steps end; of slower steps none waits."""
STALL_S: Final = 0.25
"""Seconds after which a record is written although no step ends."""
_MOST: Final = 64
_IDLE_S: Final = 10.0


class Group:
    """The calm records of one recorder that wait.

    Args:
        recorder: The recorder.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._waiting: deque[QuietStep] = deque()
        self._since = 0.0
        self._lock = threading.RLock()
        self._busy = False
        self._lines = CalmLines(recorder)

    def add(self, record: QuietStep) -> None:
        """Take a record; it is written now where it, or one before, need not wait."""
        now = time.time()
        if not self._waiting:
            # of steps that take long none waits: writing one costs them nothing
            self._since = record.time
            _WAITING.add(self)
        self._waiting.append(record)
        if now - self._since >= HOLD_S or len(self._waiting) >= _MOST or now < self._since:
            self.write()
        elif not _WATCH.runs:
            _WATCH.start()

    def write(self) -> None:
        """Write what waits; cheap where nothing does."""
        if not self._waiting and not self._busy:
            return
        with self._lock:
            self._busy = True
            waiting: list[QuietStep] = []
            while self._waiting:
                waiting.append(self._waiting.popleft())
            if waiting:
                self._recorder.guard("ledger", lambda: self._write(waiting))
            _WAITING.discard(self)
            if self._waiting:  # one came meanwhile
                _WAITING.add(self)
            self._busy = False

    def write_old(self) -> None:
        """Write what waits while no step ends."""
        if self._waiting and abs(time.time() - self._since) >= STALL_S:
            self.write()

    @property
    def waits(self) -> bool:
        """Whether a record waits."""
        return bool(self._waiting)

    def forget(self) -> None:
        """Let go of what waits: in a forked process, whose parent writes it."""
        self._waiting.clear()
        self._busy = False
        self._lock = threading.RLock()

    def _write(self, waiting: list[QuietStep]) -> None:
        recorder, lines = self._recorder, []
        for one in waiting:
            line = recorder.guard("ledger", partial(self._lines.line, one))
            if line is not None:
                lines.append(line)
            skipped = tuple([did.skipped_by == "scaler" for did in one.records])
            recorder.monitor.take_calm(skipped, one.scale_after, _shard(one))
        recorder.ledger.append_lines(lines)


def _shard(one: QuietStep) -> str | None:
    """The data shard of a step, where it is known."""
    given = one.provenance.get("shard_id")
    if given is None and one.looked is not None:
        given = one.looked.summary["scalars"].get("shard_id")
    return None if given is None else str(given)


class _Watch:
    """A thread that writes what waits while training stands still; it ends when nothing does."""

    def __init__(self) -> None:
        self.runs = False

    def start(self) -> None:
        self.runs = True
        try:
            threading.Thread(target=self._run, name="workbench-ledger", daemon=True).start()
        except RuntimeError:  # the interpreter is ending: its exit writes what waits
            self.runs = False

    def _run(self) -> None:
        last = time.monotonic()
        while self.runs:
            time.sleep(STALL_S)
            if _WAITING:
                last = time.monotonic()
                for group in list(_WAITING):
                    group.write_old()
            elif time.monotonic() - last > _IDLE_S:
                self.runs = False
                # one that came between the look and this line would start no other thread
                self.runs = bool(_WAITING)


_WAITING: set[Group] = set()
"""Groups in which a record waits; held, since their recorders may be let go of before."""
_WATCH = _Watch()


def write_all() -> None:
    """Write what waits in every recorder of this process."""
    for group in list(_WAITING):
        group.write()


def _after_fork() -> None:
    _WATCH.runs = False
    for group in list(_WAITING):
        group.forget()
    _WAITING.clear()


atexit.register(write_all)
os.register_at_fork(after_in_child=_after_fork)
