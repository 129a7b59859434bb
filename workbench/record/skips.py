"""Counting over the last steps: scaler skips per optimizer, and where trips keep happening."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence


class SkipCounts:
    """Scaler skips of several optimizers, each counted by itself.

    Two optimizers that are skipped in turn are not one that is skipped all the time.

    Args:
        window: Steps that ``most`` looks back over.

    Attributes:
        consecutive: Skips in a row, by optimizer.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._seen: list[deque[bool]] = []
        self._totals: list[int] = []
        self.consecutive: list[int] = []

    def add(self, skipped: Sequence[bool]) -> None:
        """Take in one step.

        Args:
            skipped: By optimizer; one that is not listed did not get to its update.
        """
        while len(self._seen) < len(skipped):
            self._seen.append(deque(maxlen=self._window))
            self._totals.append(0)
            self.consecutive.append(0)
        for number, seen in enumerate(self._seen):
            one = number < len(skipped) and bool(skipped[number])
            self._totals[number] += one - (len(seen) == self._window and seen[0])
            seen.append(one)
            self.consecutive[number] = self.consecutive[number] + 1 if one else 0

    @property
    def any(self) -> bool:
        """Whether any step within the window was skipped."""
        return any(self._totals)

    @property
    def most(self) -> tuple[int, int]:
        """Skipped steps and steps within the window, of the optimizer skipped most often."""
        counts = [(total, len(seen)) for total, seen in zip(self._totals, self._seen, strict=True)]
        return max(counts, key=lambda pair: pair[0] / pair[1], default=(0, 0))


class TripPlaces:
    """Modules and data shards that tripped within the last steps.

    Args:
        window: Steps it looks back over.
    """

    def __init__(self, window: int) -> None:
        self._steps: deque[tuple[bool, str | None, str | None]] = deque(maxlen=window)
        self._quiet = window

    @property
    def at_rest(self) -> bool:
        """Whether nothing tripped within the window."""
        return self._quiet >= (self._steps.maxlen or 1)

    def add(self, tripped: bool, module: str | None, shard: str | None) -> tuple[int, str]:
        """Take in one step.

        Args:
            tripped: Whether it tripped.
            module: The module that tripped, if it was one.
            shard: The shard its batch came from, if that is known.

        Returns:
            How often the place that trips most tripped, and its name; 0 where none repeats.
        """
        self._steps.append((tripped, module if tripped else None, shard))
        self._quiet = 0 if tripped else self._quiet + 1
        if self._quiet >= (self._steps.maxlen or 1):  # the usual case: no trip within the window
            return 0, ""
        modules = Counter(m for bad, m, _ in self._steps if bad and m is not None)
        shards = Counter(s for bad, _, s in self._steps if bad and s is not None)
        if len({s for _, _, s in self._steps}) < 2:
            shards.clear()  # with one shard alone, its trips say nothing about it
        found = [(count, f"The module {name!r}") for name, count in modules.items()]
        found += [(count, f"The data shard {name!r}") for name, count in shards.items()]
        return max(found, default=(0, ""))
