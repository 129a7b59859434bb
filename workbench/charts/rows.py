"""Rows for an HTML table: the twin every chart has for readers without scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rows:
    """A table of texts.

    Attributes:
        caption: One sentence that says what the rows are.
        headers: Column names.
        rows: One tuple of texts a row, as long as ``headers``; the first column names the row.
        numeric: Indices of the columns that hold numbers and are aligned right.
    """

    caption: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[int, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The rows as JSON values."""
        return {
            "caption": self.caption,
            "headers": list(self.headers),
            "rows": [list(row) for row in self.rows],
            "numeric": list(self.numeric),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Rows:
        """Read ``as_dict`` back."""
        return cls(
            str(data["caption"]),
            tuple(str(name) for name in data["headers"]),
            tuple(tuple(str(cell) for cell in row) for row in data["rows"]),
            tuple(int(index) for index in data.get("numeric", ())),
        )
