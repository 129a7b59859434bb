"""Holds the state and tells the regions whose part of it changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass
class Subscription:
    """A region, when it is seen, and what it drew last."""

    region: Region
    seen: Callable[[State], bool]
    part: object = None


class Store:
    """The one place where the state changes.

    Args:
        state: The first state.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.guard = Guard(self._report)
        self._regions: list[Subscription] = []
        self._watchers: list[Callable[[State], None]] = []
        self._drawing: set[str] = set()

    def subscribe(self, region: Region, seen: Callable[[State], bool] = lambda _: True) -> None:
        """Draw a region now and after every change of its part.

        Args:
            region: The region.
            seen: Whether the region is in the page; one that is not is drawn later.
        """
        self._regions.append(Subscription(region, seen))
        self._draw(self._regions[-1])

    def refresh(self, region: Region) -> None:
        """Draw a region that is about to be seen, if its part changed."""
        for one in self._regions:
            if one.region is region:
                self._draw(one)

    def watch(self, call: Callable[[State], None]) -> None:
        """Call after every change."""
        self._watchers.append(call)

    def dispatch(self, action: Action) -> None:
        """Change the state by one action and draw what it concerns."""
        before, self.state = self.state, reduce(self.state, action)
        if self.state is before:
            return
        for one in list(self._regions):
            self._draw(one)
        for call in self._watchers:
            call(self.state)

    def _draw(self, one: Subscription) -> None:
        region = one.region
        if region.name in self._drawing or not one.seen(self.state):
            return  # its own failure is being reported, or it is not in the page
        part = region.part(self.state)
        if one.part == part:
            return
        one.part = part
        self._drawing.add(region.name)
        try:
            self.guard.run(region.name, lambda: region.draw(self.state))
        finally:
            self._drawing.discard(region.name)

    def _report(self, region: str, problem: Any) -> None:
        from workbench.widgets.actions import Failed

        self.dispatch(Failed(region, problem))
