"""Asks what can be changed here in a process of its own: torch would take the kernel's memory.

It is the panel's only question to torch before something is replayed. The child reads the bundle's
metadata and what the machine has; it runs nothing that the bundle names.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any, Final

from workbench.errors import WorkbenchError
from workbench.numerics import jsonio
from workbench.widgets.actions import SwitchesCame
from workbench.widgets.state import Switch

WAIT_S: Final = 60.0
"""Longer than importing torch takes on a busy machine; after it torch is asked in the kernel."""


class SwitchesProcess:
    """The question, asked once.

    Args:
        bundle: The opened bundle.
    """

    def __init__(self, bundle: Any) -> None:
        self._bundle = bundle
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = self._tried = False
        self._answer: SwitchesCame | None = None

    def ask(self) -> SwitchesCame | None:
        """Wait for the child's answer, on any thread; None where it gave none."""
        with self._lock:
            if not self._tried:
                self._tried, self._answer = True, self._asked()
            return self._answer

    def answer(self) -> SwitchesCame:
        """What can be changed here; where the child said nothing, torch is asked here."""
        return self.ask() or _here(self._bundle)

    def close(self) -> None:
        """End the process: nobody wants its answer any more."""
        self._closed = True
        if self._process is not None:
            self._process.kill()

    def _asked(self) -> SwitchesCame | None:
        """The answer of the child; None where it gave none, or where torch is loaded anyway."""
        if "torch" in sys.modules or self._closed:
            return None
        command = [sys.executable, "-m", "workbench.widgets.switches", str(self._bundle.path)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            said, _ = self._process.communicate(timeout=WAIT_S)
            found = jsonio.loads(said)
            switches = tuple(
                Switch(**{**one, "choices": tuple(one["choices"])}) for one in found["switches"]
            )
            differing = tuple((str(a), str(b), str(c)) for a, b, c in found["differing"])
            return SwitchesCame(switches, str(found["note"]), differing)
        except subprocess.TimeoutExpired:
            self.close()
            return None
        except (OSError, WorkbenchError, KeyError, TypeError, ValueError):
            return None


def _here(bundle: Any) -> SwitchesCame:
    from workbench.widgets.switches import device_note, differing, read_switches

    return SwitchesCame(read_switches(bundle), device_note(bundle.conditions), differing(bundle))
