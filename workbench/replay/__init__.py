"""Replay of a recorded step under controlled conditions.

Names are loaded on first use, so that the package's public name costs nothing until it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.lazy import names_on_first_use

if TYPE_CHECKING:
    from workbench.replay.replay import Replay
    from workbench.replay.result import Reproduction, RunResult, StageState
    from workbench.replay.source import Source
    from workbench.replay.trace import Trace
    from workbench.replay.worker import ReplayWorker

__all__ = [
    "Replay",
    "ReplayWorker",
    "Reproduction",
    "RunResult",
    "Source",
    "StageState",
    "Trace",
]

__getattr__ = names_on_first_use(
    __name__,
    {
        "replay": ("Replay",),
        "result": ("Reproduction", "RunResult", "StageState"),
        "source": ("Source",),
        "trace": ("Trace",),
        "worker": ("ReplayWorker",),
    },
)
