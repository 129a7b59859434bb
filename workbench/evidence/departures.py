"""What left its usual range before or in the step, as findings say it: in a sentence each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.evidence.wording import clean

NEAR = 1e-3
"""Share of a dtype's largest number from which a layer is worth a sentence."""


def departures(data: Mapping[str, Any] | None) -> list[str]:
    """Sentences on what left its usual range, in order, and on layers near their dtype's limit.

    Args:
        data: A ``workbench.findings/1`` object, read from disk: nothing in it is taken on trust.
    """
    envelope, growth = _part(data, "envelope"), _part(data, "growth")
    found = [row.get("sentence") for row in _rows(envelope, "left")]
    found += [envelope.get("compared"), _part(growth, "left").get("sentence")]
    found += [row.get("sentence") for row in _rows(growth, "headroom") if _near(row.get("share"))]
    return [_sentence(str(one)) for one in found if one]


def _part(data: Mapping[str, Any] | None, key: str) -> Mapping[str, Any]:
    value = (data or {}).get(key)
    return value if isinstance(value, Mapping) else {}


def _rows(data: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    rows = data.get(key)
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _near(share: Any) -> bool:
    return isinstance(share, int | float) and share > NEAR


def _sentence(text: str) -> str:
    said = clean(text, 300).rstrip(".")
    start = said.split(" ", 1)[0]
    # a module's name keeps its small letters
    return f"{said if start.endswith(':') else said[:1].upper() + said[1:]}."
