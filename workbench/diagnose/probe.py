"""Probes of a recorded step: does it fail under these conditions? In a process, or in this one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from workbench.diagnose.cell import run_cell, stopped
from workbench.errors import WorkbenchError
from workbench.replay import ReplayWorker

if TYPE_CHECKING:
    from workbench.evidence import Bundle
    from workbench.replay import Replay

Data = dict[str, Any]
FINITE = frozenset({"gone", "benign_skip"})
"""Results of a cell that count as finite."""


class Prober(Protocol):
    """Runs the step under changed conditions and returns the data of one cell."""

    def __call__(self, changed: Mapping[str, Any]) -> Data:
        """Run one cell."""
        ...


class InProcess:
    """Probes with a replay in this process: for scripts and tests, where no crash is expected.

    Args:
        replay: The replay.
    """

    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    def __call__(self, changed: Mapping[str, Any]) -> Data:
        """Run one cell."""
        try:
            return run_cell(self._replay, {"conditions": dict(changed)}, lambda event: None)
        except WorkbenchError as error:
            return stopped("error", str(error))


class InWorker:
    """Probes in a child process, which a crash replaces by a new one.

    Args:
        bundle: The bundle.
        step: The training step, findable by another process.
        trust: As ``Replay`` takes it.
        timeout_s: Longest time of one probe in seconds.
    """

    def __init__(
        self,
        bundle: Bundle,
        step: Any = None,
        trust: str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self._worker = ReplayWorker(bundle.path, step, trust)
        self._timeout_s = timeout_s

    def __call__(self, changed: Mapping[str, Any]) -> Data:
        """Run one cell."""
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in changed.items()}
        event = self._worker.result(
            "diagnose",
            timeout_s=self._timeout_s,
            entry="workbench.diagnose:run_cell",
            conditions=plain,
        )
        if event["event"] == "done":
            result: Data = event["result"]
            return result
        return stopped(event["event"], str(event.get("message", "")))

    def __enter__(self) -> InWorker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._worker.stop()


def is_finite(data: Data) -> bool:
    """Whether every run of a cell was finite where the record is not."""
    return bool(data["runs"]) and all(run["result"] in FINITE for run in data["runs"])


def fails(data: Data) -> bool:
    """Whether every run of a cell failed; one that died or was refused came to no answer."""
    return bool(data["runs"]) and all(run["tensor"] is not None for run in data["runs"])


Say = Callable[[str], None]
