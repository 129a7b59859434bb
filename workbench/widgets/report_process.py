"""A report being made: `workbench report` in a child process, so that it can be stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import IO

KEPT_LINES = 40
GRACE_S = 3.0


class ReportProcess:
    """One run of `workbench report`.

    Args:
        bundle: Path of the bundle.
        output: Where the HTML file goes.
        options: Further options: ``("--step", "train:Step")``, or none for recorded evidence.
    """

    def __init__(self, bundle: Path, output: Path, options: tuple[str, ...] = ()) -> None:
        self.output = output
        self.began = time.monotonic()
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        command = [sys.executable, "-m", "workbench", "report", str(bundle.resolve())]
        command += ["--output", str(output), *options]
        # a group of its own: stopping ends the report's own Python and its replay with it
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self._process.stderr,))
        self._reader.daemon = True
        self._reader.start()

    def _read(self, stream: IO[bytes] | None) -> None:
        for line in stream or ():
            text = line.decode("utf-8", "replace").strip()
            if text:
                self._lines.append(text)

    @property
    def doing(self) -> str:
        """The last thing it said."""
        return self._lines[-1] if self._lines else ""

    @property
    def code(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    def said(self) -> str:
        """What it said last, for a failure: one paragraph."""
        self._reader.join(timeout=1.0)
        lines = [line for line in self._lines if not line.startswith("Writing:")]
        return " ".join(lines[-6:])

    def stop(self) -> None:
        """End it and everything it started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
            except (ProcessLookupError, PermissionError):
                break
            try:
                self._process.wait(GRACE_S)
                break
            except subprocess.TimeoutExpired:
                continue
