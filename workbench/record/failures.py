"""What failed in the tool itself, in sentences: the last ones, and how many there were."""

from __future__ import annotations

from typing import Final

MOST: Final = 1000
"""Sentences that are held: a disk that stays full fails in every step of a long run."""


class Failures(list[str]):
    """The last sentences, oldest first.

    Attributes:
        total: How many were added, those that are no longer held among them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def add(self, sentence: str) -> None:
        """Add a sentence; the oldest goes when there are too many."""
        self.total += 1
        self.append(sentence)
        del self[:-MOST]

    def since(self, total: int) -> list[str]:
        """What was added since ``total`` was this, each sentence once."""
        added = self.total - total
        return list(dict.fromkeys(self[-added:])) if added else []
