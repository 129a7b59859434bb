"""How numbers, names and verdicts are written on screen, in one place for panel and report."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from workbench.evidence.verdicts import survival_sentence

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


def counts(values: Mapping[str, Any]) -> str:
    """Write non-finite counts, for example ``1 NaN, 3 −Inf of 8,192``; ``all finite`` when none."""
    total = sum(int(values.get(kind) or 0) for kind in (*KINDS, "finite"))
    found = [
        f"{number(int(values[kind]))} {KIND_WORDS[kind]}" for kind in KINDS if values.get(kind)
    ]
    if not found:
        return f"all {number(total)} finite" if total else "no element"
    return f"{', '.join(found)} of {number(total)}"


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


_VERDICTS = {
    "bitwise": "Replayed exactly: same loss bits, same non-finite values.",
    "same_mask": "Replayed: the same elements are non-finite; finite values differ.",
    "same_class": "Replayed in kind: the same tensor goes non-finite in the same way, "
    "at other positions.",
    "same_alert": "Replayed: the same alert, all values finite.",
    "not_reproduced": "Did not fail here. That does not clear the step.",
    "unverifiable": "Cannot be checked here.",
}
_RESULTS = {
    "gone": "The failure is gone.",
    "moved": "The failure moves elsewhere.",
    "benign_skip": "Only a scaler skip is left.",
    "unchanged": "It fails the same way.",
}


def verdict(reproduction: Mapping[str, Any] | None) -> str:
    """The sentence for a replay's verdict, with what the probes did to the failure."""
    value = (reproduction or {}).get("verdict")
    if reproduction is None or value is None:
        return "Not replayed yet."
    text = str(reproduction.get("sentence") or "") or _VERDICTS.get(str(value), f"{value}.")
    differences = [_difference(d) for d in reproduction.get("differences") or []]
    if differences and value in ("not_reproduced", "unverifiable") and text in _VERDICTS.values():
        text = f"{text[:-1]}: {'; '.join(differences[:3])}."
    survives = reproduction.get("survives_instrumentation")
    if survives is None or value in ("not_reproduced", "unverifiable"):
        return text
    tripped = reproduction.get("tripped") is not False
    return f"{text} {survival_sentence(survives is True, tripped=tripped)}"


def _difference(item: Any) -> str:
    """Write one difference, whether it is a sentence or a recorded/here pair."""
    if not isinstance(item, Mapping):
        return str(item)
    field = item.get("field") or item.get("tensor") or item.get("name") or "difference"
    if "recorded" in item or "here" in item:
        return f"{field} recorded {number(item.get('recorded'))}, here {number(item.get('here'))}"
    rest = ", ".join(f"{key} {number(value)}" for key, value in item.items() if value != field)
    return f"{field}: {rest}" if rest else str(field)


def result(value: str) -> str:
    """The sentence for the result of a counterfactual."""
    return _RESULTS.get(value, f"Result: {value}.")
