"""How numbers and names are written in charts, panel and report."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from workbench.evidence import wording

GLYPHS = {"nan": "✕", "pos_inf": "▲", "neg_inf": "▼"}
KIND_WORDS = {"nan": "NaN", "pos_inf": "+Inf", "neg_inf": "−Inf"}
KINDS = ("nan", "pos_inf", "neg_inf")

# What a reader meets in place of a value that was not recorded.
MISSING = "–"


def number(value: Any) -> str:
    """Write a number: thousands separators, 4 significant digits, ``NaN``, ``+Inf``, ``−Inf``.

    Anything that is not a number is written as text; None is an en dash.
    """
    if value is None:
        return MISSING
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return wording.number(value)


def shorten(name: str, width: int) -> str:
    """Cut a long name in the middle, keeping both ends."""
    if len(name) <= width:
        return name
    head = (width - 1) // 2
    tail = width - 1 - head
    return f"{name[:head]}…{name[len(name) - tail :]}"


def plain(name: str) -> str:
    """Escape a name for plotly, whose texts are a small HTML of their own."""
    return html.escape(name, quote=False)


def listed(items: Sequence[str], limit: int = 6) -> str:
    """Join names with commas; the rest beyond ``limit`` is counted, never dropped in silence."""
    shown = ", ".join(items[:limit])
    rest = len(items) - limit
    return f"{shown} and {number(rest)} more" if rest > 0 else shown
