"""Looks at the child processes while they run: beside an event loop, or while a script waits."""

from __future__ import annotations

import asyncio
from typing import Any

from workbench.errors import UsageError
from workbench.widgets.store import Store

TICK = 0.1
"""Seconds between two looks at the replay process."""


class Clock:
    """The part of `Workbench` that sees what the child processes do."""

    rail: Any
    stop: Any
    _store: Store
    _jobs: Any
    _report: Any
    _pump_report: Any
    _loop: asyncio.AbstractEventLoop | None
    _task: asyncio.Task[None] | None

    def wait(self, timeout: float = 600.0) -> None:
        """Wait until nothing runs any more; for scripts, where no event loop shows progress.

        Raises:
            UsageError: Something still runs after ``timeout`` seconds.
        """
        import time

        deadline = time.monotonic() + timeout
        try:
            while self._jobs.busy or self._report is not None:
                self._jobs.pump(TICK)
                self._pump_report()
                if self._report is not None and not self._jobs.busy:
                    time.sleep(TICK)
                if time.monotonic() > deadline:
                    raise UsageError(
                        f"The replay still runs after {timeout:g} seconds, and nothing was "
                        "stopped. Wait again with a longer timeout, or call stop()."
                    )
        except KeyboardInterrupt:
            self.stop()
            raise

    def _watch(self) -> None:
        """Look at the replay process while it runs, where an event loop is there to do it."""
        loop = self._loop or running_loop()
        if loop is not None:
            # a callback may come on another thread than the one that cells run on
            loop.call_soon_threadsafe(self._begin_looking, loop)

    def _begin_looking(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._look())

    async def _look(self) -> None:
        while self._jobs.busy or self._report is not None:
            self._store.guard.run("report", self._pump_report)
            self._store.guard.run("rail", self._jobs.pump)
            if self._store.state.activity is not None:
                self.rail.tick(self._store.state.activity)
            await asyncio.sleep(TICK)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop of this thread; None in a script."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
