"""Replay of a recorded step under controlled conditions.

Names are loaded on first use, so that the package's public name costs nothing until it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.replay.replay import Replay
    from workbench.replay.result import Reproduction, RunResult, StageState
    from workbench.replay.source import Source
    from workbench.replay.trace import Trace
    from workbench.replay.worker import ReplayWorker

_WHERE = {
    "Replay": "replay",
    "ReplayWorker": "worker",
    "Reproduction": "result",
    "RunResult": "result",
    "Source": "source",
    "StageState": "result",
    "Trace": "trace",
}

__all__ = [
    "Replay",
    "ReplayWorker",
    "Reproduction",
    "RunResult",
    "Source",
    "StageState",
    "Trace",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = value
    return value
