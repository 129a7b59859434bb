"""How values of a claim are shown: as a person reads them, and where two differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from workbench.evidence.wording import clean

_BEFORE: Final = 40


def readable(value: Any) -> str:
    """A plain value as text: no braces, no escapes."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {readable(one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return " | ".join(map(readable, value)) or "nothing"
    return {None: "none", True: "yes", False: "no"}.get(value, str(value))


def apart(said: Any, found: Any, most: int) -> tuple[str, str]:
    """Two values as texts of at most ``most`` characters, from shortly before they part."""
    left, right = readable(said), readable(found)
    if max(len(left), len(right)) <= most:
        return clean(left, most), clean(right, most)
    pairs = enumerate(zip(left, right, strict=False))
    parts = next((at for at, (a, b) in pairs if a != b), min(len(left), len(right)))
    start = max(0, parts - _BEFORE)
    mark = "…" if start else ""
    return clean(f"{mark}{left[start:]}", most), clean(f"{mark}{right[start:]}", most)


__all__ = ["apart", "readable"]
