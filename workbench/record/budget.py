"""The bytes that the bundles of a run may take, held to the byte.

What a bundle will take is only estimated before it is written, and one may still be written beside
training when the next begins. So each takes bytes from the run's budget before it writes them, and
gives back what it did not need.
"""

from __future__ import annotations

import threading


class Budget:
    """Bytes left to the bundles of a run; several threads may take from it.

    Args:
        most: Most bytes of all bundles.
    """

    def __init__(self, most: int) -> None:
        self._left = most
        self._lock = threading.Lock()

    @property
    def left(self) -> int:
        """Bytes that nobody has taken."""
        return self._left

    def take(self, size: int) -> bool:
        """Take so many bytes, or none where fewer are left; a negative number gives back."""
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
            return True


class Allowance:
    """What one bundle may take.

    Args:
        budget: The run's.
        most: Most bytes of this bundle.
    """

    def __init__(self, budget: Budget, most: int) -> None:
        self._budget = budget
        self._most = most
        self._held = 0

    @property
    def most(self) -> int:
        """Bytes that the bundle could have in all, as things stand."""
        return min(self._most, self._held + self._budget.left)

    def covers(self, size: int) -> bool:
        """Whether the bundle may have so many bytes in all; they are then taken."""
        if size <= self._held:
            return True
        if size > self._most or not self._budget.take(size - self._held):
            return False
        self._held = size
        return True

    def settle(self, size: int) -> None:
        """Give back what the finished bundle did not need.

        Args:
            size: The bytes that lie on the disk.
        """
        self._budget.take(size - self._held)
        self._held = size
