"""`ReplayWorker`: a replay in a process of its own, so that a crash or a stop costs nothing.

Only plain data crosses: commands and events are lines of strict JSON. User code runs in the child
alone; what it prints goes to the child's standard error, of which the end is kept.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from workbench.errors import CannotRunError, UsageError
from workbench.replay.child import Child, Event, python

EVENTS: Final = ("stage_begun", "stage_done", "progress", "done", "error", "died", "stopped")
LAST: Final = frozenset({"done", "error", "died", "stopped"})
"""Events that end a command."""
COMMANDS: Final = ("run", "step", "back", "reset", "verdict", "trace", "compare", "diagnose")


class ReplayWorker:
    """A replay in a child process.

    Args:
        bundle: Path of the bundle.
        step: Reference of the training step (``train:Step``, ``train.py:Step``), or a step object
            whose class can be found again by one; None takes the one the bundle names.
        trust: ``"import"`` or ``"source"``.
        on_event: Called with every event, from a thread of this worker; events are there to be
            polled all the same.
        import_path: Further folders that modules are imported from, after those of this process.

    Raises:
        CannotRunError: The step is an object that no other process can find again.
    """

    def __init__(
        self,
        bundle: str | os.PathLike[str],
        step: Any = None,
        trust: str | None = None,
        on_event: Callable[[Event], None] | None = None,
        import_path: Sequence[str] = (),
    ) -> None:
        self._opening = {
            "bundle": str(Path(bundle).absolute()),
            "step": reference_of(step),
            "trust": trust,
            "path": list(dict.fromkeys(entry for entry in (*sys.path, *import_path) if entry)),
        }
        self._on_event = on_event
        self._child: Child | None = None
        self._ending: weakref.finalize[..., ReplayWorker] | None = None
        self._events: queue.Queue[Event] = queue.Queue()
        self._lock = threading.Lock()
        self._busy = False
        self._limit: threading.Timer | None = None

    # -- asking -------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._child is not None and self._child.alive

    @property
    def busy(self) -> bool:
        """Whether a command is running."""
        return self._busy

    @property
    def pid(self) -> int | None:
        """The child's process number, or None before the first command."""
        return None if self._child is None else self._child.process.pid

    def start(self, command: Mapping[str, Any]) -> None:
        """Ask for something: ``{"command": "run", "until": "loss", "conditions": {…}}``."""
        arguments = dict(command)
        self.send(str(arguments.pop("command", "")), **arguments)

    def send(self, command: str, *, timeout_s: float | None = None, **arguments: Any) -> None:
        """Ask for something; the answers come as events, the last one in ``LAST``.

        Args:
            command: ``run`` (until, conditions), ``step``, ``back``, ``reset``, ``verdict``,
                ``trace`` (until, conditions), ``compare`` (first, second: conditions; or other:
                path of a bundle, which runs no code), or ``diagnose`` (entry, and its arguments).
            timeout_s: Seconds after which the process is ended and ``died`` is reported.
            **arguments: Plain data.

        Raises:
            UsageError: No such command, or one is still running.
        """
        if command not in COMMANDS:
            raise UsageError(
                f"The replay process knows no command '{command}', so nothing was started. The "
                f"commands are: {', '.join(COMMANDS)}."
            )
        with self._lock:
            if self._busy and self.alive:
                raise UsageError(
                    f"The replay process is still busy, so '{command}' was not started. Wait for "
                    "its last event, or call stop()."
                )
            if not self.alive:
                self._spawn()
            child = self._child
            assert child is not None  # noqa: S101 - just started
            self._busy, child.stage = True, ""
            child.write({"command": command, **arguments})
        if timeout_s is not None:
            self._limit = threading.Timer(timeout_s, self._out_of_time, [child, timeout_s])
            self._limit.daemon = True
            self._limit.start()

    def poll(self, timeout: float = 0.0) -> list[Event]:
        """Events that have arrived, waiting up to ``timeout`` seconds for the first."""
        found: list[Event] = []
        try:
            found.append(self._events.get(timeout=timeout) if timeout else self._events.get(False))
            while True:
                found.append(self._events.get(False))
        except queue.Empty:
            return found

    def events(self, timeout: float | None = None) -> Iterator[Event]:
        """The events of the running command, up to its last one.

        Args:
            timeout: Longest wait for one event in seconds; the iterator ends when it is over.
        """
        while True:
            try:
                event = self._events.get(timeout=timeout)
            except queue.Empty:
                return
            yield event
            if event["event"] in LAST:
                return

    def result(self, command: str, *, timeout_s: float | None = None, **arguments: Any) -> Event:
        """Send a command, wait, and return its last event."""
        self.send(command, timeout_s=timeout_s, **arguments)
        return list(self.events())[-1]

    def stop(self) -> None:
        """End the process now. The bundle is untouched; the next command starts a new process."""
        if self._child is not None:
            self._child.stop()

    def __enter__(self) -> ReplayWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- the process --------------------------------------------------------------------------

    def _spawn(self) -> None:
        if self._child is not None:
            # its last event must not end the command that comes now
            self._child.finished.wait(timeout=5.0)
        self.poll()
        child = Child(python("workbench.replay.worker_main"), self._emit)
        self._child = child
        if self._ending is not None:
            self._ending.detach()
        self._ending = weakref.finalize(self, child.stop)  # at the latest when Python ends
        child.write({"command": "open", **self._opening})

    def _emit(self, event: Event) -> None:
        if event["event"] in LAST:
            self._busy = False
            if self._limit is not None:
                self._limit.cancel()
                self._limit = None
        self._events.put(event)
        if self._on_event is not None:
            self._on_event(event)

    def _out_of_time(self, child: Child, seconds: float) -> None:
        if self._busy and child is self._child:
            child.out_of_time(seconds)


def reference_of(step: Any) -> str | None:
    """A reference by which another process finds a step.

    Args:
        step: A reference, a step object or class, or None.

    Raises:
        CannotRunError: The step was typed into a notebook cell or a console.
    """
    if step is None or isinstance(step, str):
        return step
    from workbench.step.locate import step_reference

    known = step_reference(object.__new__(step) if isinstance(step, type) else step)
    if known.get("reference") and known.get("kind") in ("module", "file", "integration"):
        return str(known["reference"])
    name = getattr(step, "__name__", type(step).__name__)
    raise CannotRunError(
        f"The training step '{name}' was typed into a notebook cell or a console, and the replay "
        "runs in another process, which cannot find it there. Put the class into a file and name "
        f"it as step='file.py:{name}'."
    )
