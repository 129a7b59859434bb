"""Holds the state and tells the regions whose part of it changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from workbench.widgets.actions import Action
from workbench.widgets.guard import Guard
from workbench.widgets.reducer import reduce
from workbench.widgets.state import State


class Region(Protocol):
    """A part of the panel."""

    name: str
    widget: Any

    def part(self, state: State) -> object:
        """What the region depends on; it is drawn again when this changed."""

    def draw(self, state: State) -> None:
        """Show the state."""


class Store:
    """The one place where the state changes.

    Args:
        state: The first state.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.guard = Guard(self._report)
        self._regions: list[tuple[Region, list[object]]] = []
        self._watchers: list[Callable[[State], None]] = []
        self._drawing: set[str] = set()

    def subscribe(self, region: Region) -> None:
        """Draw a region now and after every change of its part."""
        self._regions.append((region, [None]))
        self._draw(region, self._regions[-1][1])

    def watch(self, call: Callable[[State], None]) -> None:
        """Call after every change."""
        self._watchers.append(call)

    def dispatch(self, action: Action) -> None:
        """Change the state by one action and draw what it concerns."""
        before, self.state = self.state, reduce(self.state, action)
        if self.state is before:
            return
        for region, last in list(self._regions):
            self._draw(region, last)
        for call in self._watchers:
            call(self.state)

    def _draw(self, region: Region, last: list[object]) -> None:
        if region.name in self._drawing:
            return  # its own failure is being reported: drawing again would fail again
        part = region.part(self.state)
        if last[0] is not None and last[0] == part:
            return
        last[0] = part
        self._drawing.add(region.name)
        try:
            self.guard.run(region.name, lambda: region.draw(self.state))
        finally:
            self._drawing.discard(region.name)

    def _report(self, region: str, problem: Any) -> None:
        from workbench.widgets.actions import Failed

        self.dispatch(Failed(region, problem))
