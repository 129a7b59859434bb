"""Loads what takes seconds beside the event loop, so that recorded facts are on screen before it.

The timeline's first view comes first, then plotly, then what an earlier diagnosis left and what
can be changed here. Nothing of it loads torch: a process of its own is asked for the last. Without
an event loop, in scripts and tests, everything is loaded at once.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

from workbench.widgets.actions import ChartsLoaded, SavedLayersCame
from workbench.widgets.saved import saved_layers, traced_on
from workbench.widgets.state import Charts
from workbench.widgets.store import Store
from workbench.widgets.switches_process import SwitchesProcess

STILL = ("workbench.widgets.timeline",)
CHARTS = ("plotly.graph_objects", "plotly.basewidget", "workbench.widgets.figure")
LAYERS = ("workbench.widgets.ranges",)
DRAWING_S = 2.0
"""Seconds left to the page for its first chart, and longest wait for a loop that a cell holds."""


class Loading:
    """What the panel learns after its first facts.

    Args:
        store: The panel's state.
        bundle: The opened bundle.
    """

    def __init__(self, store: Store, bundle: Any) -> None:
        self._store, self._bundle = store, bundle
        self._completed = self._closed = self._layered = False
        self._switches = SwitchesProcess(bundle)
        self._wanted = threading.Event()

    def start(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Load everything, beside ``loop`` where there is one."""
        if loop is None or {*CHARTS, "torch"} <= set(sys.modules):
            self._charts("live")
            self.complete()
            return

        def load() -> None:
            self._after(loop, STILL, lambda: self._charts("still"))
            self._after(loop, CHARTS, lambda: self._charts("live"))
            if self._store.state.findings is not None:
                _ready_for_layers()
                self._after(loop, LAYERS, self._saved)
            self._wanted.wait(DRAWING_S)  # the page takes a whole core to read plotly's script
            self._switches.ask()
            self._after(loop, (), self.complete)

        threading.Thread(target=load, name="workbench-loading", daemon=True).start()

    def complete(self) -> None:
        """The switches, and the ranges of an earlier diagnosis; once, when they are needed."""
        if self._completed or self._closed:
            return
        self._completed = True
        self._wanted.set()
        self._store.dispatch(self._switches.answer())
        self._saved()

    def close(self) -> None:
        """The panel is gone: what is still being loaded changes nothing any more."""
        self._closed = True
        self._wanted.set()
        self._switches.close()

    def _saved(self) -> None:
        if self._layered or self._closed or self._store.state.findings is None:
            return
        self._layered = True
        layers = saved_layers(self._bundle)
        if layers is not None:
            said = f"From the replay saved on {traced_on(self._bundle)}, not run here."
            self._store.dispatch(SavedLayersCame(layers, said))

    def _after(
        self, loop: asyncio.AbstractEventLoop, modules: tuple[str, ...], then: Callable[[], None]
    ) -> None:
        """Import, then carry out in the event loop, whose time the next import would take."""
        for module in modules:
            import_module(module)
        done = threading.Event()

        def run() -> None:
            self._store.guard.run("main", then)
            done.set()

        loop.call_soon_threadsafe(run)
        done.wait(DRAWING_S)

    def _charts(self, charts: Charts) -> None:
        if not self._closed:
            self._store.dispatch(ChartsLoaded(charts))


def _ready_for_layers() -> None:
    """Spend on this thread what the first chart of layers would make a click wait for."""
    from workbench.charts.arrays import get_ready

    get_ready()
