"""Loads what takes seconds beside the event loop, so that recorded facts are on screen before it.

Charts come first, then torch, which says what can be changed here. Importing torch keeps the
kernel from answering the page for seconds, so it waits until the first chart has had time to be
drawn. Without an event loop, in scripts and tests, both are loaded at once.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from workbench.widgets.actions import ChartsLoaded, SavedLayersCame, SwitchesCame
from workbench.widgets.saved import saved_layers, traced_on
from workbench.widgets.state import Charts
from workbench.widgets.store import Store

STILL = ("workbench.widgets.timeline",)
CHARTS = ("plotly.graph_objects", "plotly.basewidget", "workbench.widgets.figure")
TORCH = ("xarray", "torch")
DRAWING_S = 2.0
"""Seconds left to the page for its first chart."""


class Loading:
    """What the panel learns after its first facts.

    Args:
        store: The panel's state.
        bundle: The opened bundle.
    """

    def __init__(self, store: Store, bundle: Any) -> None:
        self._store, self._bundle = store, bundle
        self._completed = self._closed = False
        self._wanted = threading.Event()

    def start(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Load everything, beside ``loop`` where there is one."""
        if loop is None or {*CHARTS, *TORCH} <= set(sys.modules):
            self._charts("live")
            self.complete()
            return

        def load() -> None:
            for modules, then, pause in (
                (STILL, partial(self._charts, "still"), 0.0),
                (CHARTS, partial(self._charts, "live"), DRAWING_S),
                (TORCH, self.complete, 0.0),
            ):
                for module in modules:
                    import_module(module)
                self._on(loop, then)
                self._wanted.wait(pause)

        threading.Thread(target=load, name="workbench-loading", daemon=True).start()

    def complete(self) -> None:
        """The switches, and the ranges of an earlier diagnosis; once, when they are needed."""
        if self._completed or self._closed:
            return
        self._completed = True
        self._wanted.set()
        from workbench.widgets.switches import device_note, read_switches

        note = device_note(self._bundle.conditions)
        self._store.dispatch(SwitchesCame(read_switches(self._bundle), note))
        if self._store.state.findings is None:
            return
        layers = saved_layers(self._bundle)
        if layers is not None:
            said = f"From the replay saved on {traced_on(self._bundle)}, not run here."
            self._store.dispatch(SavedLayersCame(layers, said))

    def close(self) -> None:
        """The panel is gone: what is still being loaded changes nothing any more."""
        self._closed = True
        self._wanted.set()

    def _on(self, loop: asyncio.AbstractEventLoop, then: Callable[[], None]) -> None:
        """Carry out in the event loop, and go on importing when it is done: both take its time."""
        done = threading.Event()

        def run() -> None:
            self._store.guard.run("main", then)
            done.set()

        loop.call_soon_threadsafe(run)
        done.wait(DRAWING_S)

    def _charts(self, charts: Charts) -> None:
        if not self._closed:
            self._store.dispatch(ChartsLoaded(charts))
