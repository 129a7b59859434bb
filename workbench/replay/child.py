"""One child process: started, listened to, ended with whatever it started itself.

Its last word is always an event with a reason, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Final

from workbench.errors import BundleError
from workbench.numerics import jsonio

Event = dict[str, Any]
KEPT_STDERR: Final = 4000
"""Characters of the child's standard error that are kept, its end."""
_GRACE_S: Final = 0.3
_DRAIN_S: Final = 1.0
_GROUPS: Final = os.name == "posix"


class Child:
    """A child process that writes events as lines of strict JSON.

    Args:
        command: Its command line.
        on_event: Called with every event, from a thread of this object; the last one is ``died``
            or ``stopped``, unless the child said with an event that it would end.

    Attributes:
        stage: The stage it last spoke of.
        finished: Set once its last event was handed on.
    """

    def __init__(self, command: Sequence[str], on_event: Callable[[Event], None]) -> None:
        self.stage = ""
        self.finished = threading.Event()
        self._on_event = on_event
        self._stopped = False
        self._leaving = False
        self._too_long: float | None = None
        self._stderr: deque[str] = deque(maxlen=200)
        self.process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            start_new_session=_GROUPS,  # so that its own children can be ended with it
        )
        reader = threading.Thread(target=self._read, args=[self.process.stdout], daemon=True)
        errors = threading.Thread(target=self._keep_stderr, args=[self.process.stderr], daemon=True)
        for thread in (reader, errors):
            thread.start()
        threading.Thread(target=self._watch, args=[reader, errors], daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def write(self, message: Mapping[str, Any]) -> None:
        """Send one line."""
        if self.process.stdin is None:
            return
        try:
            self.process.stdin.write((jsonio.dumps(message) + "\n").encode())
            self.process.stdin.flush()
        except OSError:  # it died meanwhile; the watching thread says so
            return

    def stop(self) -> None:
        """End the process now, even in the middle of native code, because a person asked."""
        if self.alive:
            self._stopped = True
            end(self.process)

    def out_of_time(self, seconds: float) -> None:
        """End the process because it took too long."""
        if self.alive:
            self._too_long = seconds
            end(self.process)

    # -- listening ----------------------------------------------------------------------------

    def _read(self, stream: IO[bytes]) -> None:
        for line in stream:
            try:
                event = jsonio.loads(line)
            except BundleError:  # cut off in the middle of a line by its death
                continue
            self.stage = str(event.get("stage") or self.stage)
            if event.pop("leaves", False):
                self._leaving = True
                end(self.process)  # it is on its way; the next command must not be sent to it
            self._on_event(event)

    def _keep_stderr(self, stream: IO[bytes]) -> None:
        for line in stream:
            self._stderr.append(line.decode("utf-8", "replace"))

    def _watch(self, *listening: threading.Thread) -> None:
        """Say how it ended; a process it left behind may hold the pipes, and is not waited for."""
        self.process.wait()
        for thread in listening:
            thread.join(timeout=_DRAIN_S)
        if self._leaving:
            self.finished.set()
            return
        if self._stopped:
            event = {"event": "stopped", "stage": self.stage, "message": self._said_stopped()}
        else:
            event = self._death(self.process.returncode)
        self.finished.set()
        self._on_event(event)

    def _said_stopped(self) -> str:
        where = f" in {self.stage}" if self.stage else ""
        return f"Stopped by you{where}. Stages before it are kept."

    def _death(self, code: int) -> Event:
        stderr = "".join(self._stderr)[-KEPT_STDERR:]
        reason = reason_of(code, stderr)
        if self._too_long is not None:
            reason = f"it took longer than the limit of {self._too_long:g} s"
        where = f" in {self.stage}" if self.stage else ""
        return {
            "event": "died",
            "stage": self.stage,
            "code": code,
            "reason": reason,
            "stderr": stderr,
            "message": f"The replay process died{where}: {reason}. The bundle is untouched.",
        }


def python(module: str) -> list[str]:
    """Command line of a module in this interpreter, with tracebacks of native crashes."""
    return [sys.executable, "-X", "faulthandler", "-m", module]


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that we started, with its own children: politely, then at once."""
    _signal(process, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    # a child of it may still be there when it is gone itself
    _signal(process, signal.SIGKILL if _GROUPS else signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_DRAIN_S)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if _GROUPS:
            os.killpg(process.pid, number)  # the child leads a group of its own
        else:
            process.terminate()


def reason_of(code: int, stderr: str) -> str:
    """Say why a process ended, from its exit code and its last words."""
    if code < 0:
        known = {one.value: one.name for one in signal.Signals}
        name = known.get(-code, str(-code))
        if name == "SIGKILL":
            return "it was killed (SIGKILL), most often because memory ran out"
        if name == "SIGSEGV":
            return "a segmentation fault (SIGSEGV) in native code"
        return f"signal {name}"
    last = [line for line in stderr.strip().splitlines() if line.strip()][-1:]
    said = f": {last[0].strip()[:200]}" if last else ""
    return f"it ended with exit code {code}{said}"
