"""The step's code as text: the copy in the bundle, the file here, and what differs.

Nothing is imported or executed: a module is looked up by its path only.
"""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_BYTES = 2 << 20


@dataclass(frozen=True)
class Code:
    """The texts and how they differ.

    Attributes:
        bundled: Text of the copy in the bundle; empty when there is none.
        here: Text found here; empty when it was not found as text.
        lines: Lines of the bundled copy.
        differing: Lines that differ.
        diff: A unified diff from the bundle's text to the one here.
    """

    bundled: str
    here: str
    lines: int
    differing: int
    diff: str = ""


class CodeReader:
    """Reads the code of a bundle's step, once a reference.

    Args:
        bundle: The opened bundle.
    """

    def __init__(self, bundle: Any) -> None:
        self._bundle = bundle
        self._read: dict[str, Code] = {}

    def read(self, reference: str) -> Code:
        """The texts for a reference ``module:Name`` or ``file.py:Name``."""
        if reference not in self._read:
            self._read[reference] = compare(self._bundled(), _text_here(reference))
        return self._read[reference]

    def _bundled(self) -> str:
        source = getattr(self._bundle.manifest.step_reference, "source", "")
        return str(self._bundle.text(source)) if source and self._bundle.has(source) else ""


def compare(bundled: str, here: str) -> Code:
    """Two texts and how they differ."""
    before, after = bundled.splitlines(), here.splitlines()
    if not before or not after:
        return Code(bundled, here, len(before), 0)
    lines = list(difflib.unified_diff(before, after, "in the bundle", "here", lineterm="", n=2))
    # a changed line is one taken away and one added: it counts once
    added = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
    taken = sum(line.startswith("-") and not line.startswith("---") for line in lines)
    return Code(bundled, here, len(before), max(added, taken), "\n".join(lines))


def _text_here(reference: str) -> str:
    path = file_of(reference)
    if path is None or path.stat().st_size > MAX_BYTES:
        return ""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def file_of(reference: str) -> Path | None:
    """The file a reference names, found by its path alone, or None."""
    where, _, _ = reference.rpartition(":")
    if not where:
        return None
    if where.endswith(".py"):
        path = Path(where).expanduser()
        return path if path.is_file() else None
    parts = where.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    for entry in sys.path:
        base = Path(entry or ".").joinpath(*parts)
        for candidate in (base.with_suffix(".py"), base / "__init__.py"):
            if candidate.is_file():
                return candidate
    return None
