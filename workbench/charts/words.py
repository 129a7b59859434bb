"""How numbers and names are written in charts, panel and report."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

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
    if isinstance(value, int):
        return f"{value:,}".replace("-", "−")
    return _float(value)


def _float(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "−Inf"
    size = abs(value)
    if size == 0:
        return "0"
    if 1e3 <= size < 1e6:
        text = f"{value:,.0f}"
    elif 1e-4 <= size < 1e3:
        text = f"{value:.4g}"
    else:
        mantissa, _, exponent = f"{value:.3e}".partition("e")
        text = f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return text.replace("-", "−")


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
