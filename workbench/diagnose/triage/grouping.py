"""The same fault across incidents: which incidents belong together, and why.

By origin where a diagnosis found one: the same op, in the same module, of the same cause. Else by
where it was caught, which is weaker: different faults can be caught at the same place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from workbench.evidence.wording import clean, joined, number

Row = dict[str, Any]


def groups(incidents: Iterable[Row]) -> list[Row]:
    """Group incidents, newest group first.

    Args:
        incidents: Incidents of `incidents.incidents`, newest first.

    Returns:
        Groups: ``id`` (stable for the same fault), ``by`` (``origin``, ``no origin`` or
        ``caught``), ``what``, ``why``, ``count``, ``incidents`` (URLs), ``fingerprints``,
        ``steps``, ``runs``, ``first_seen``, ``last_seen``, ``known`` (all of them), ``next`` (the
        bundle that a person looks at next) and ``perhaps`` (groups by origin caught at the same
        place).
    """
    members: dict[tuple[str, ...], list[Row]] = {}
    for incident in incidents:
        members.setdefault(key(incident), []).append(incident)
    found = [_group(name, rows) for name, rows in members.items()]
    for group in found:
        group["perhaps"] = _perhaps(group, found)
        for incident in members[tuple(group.pop("key"))]:
            incident["group"] = group["id"]
    return sorted(found, key=lambda g: (g["last_seen"], g["count"]), reverse=True)


def key(incident: Row) -> tuple[str, ...]:
    """What two incidents must have in common to be one group."""
    origin = incident["origin"]
    if origin is not None:
        return ("origin", *(str(origin.get(part) or "") for part in _ORIGIN))
    caught = incident["caught"] or {}
    by = "no origin" if incident["findings"] == "no origin" else "caught"
    place = (incident["kind"], str(caught.get("stage") or ""), str(caught.get("tensor") or ""))
    return (by, *place)


_ORIGIN = ("kind", "op", "where", "module", "cause")


def _group(name: tuple[str, ...], rows: list[Row]) -> Row:
    created = sorted(row["created"] for row in rows)
    digest = hashlib.sha256("\0".join(name).encode("utf-8", "replace")).hexdigest()
    return {
        "key": list(name),
        "id": f"G-{digest[:6]}",
        "by": name[0],
        "what": _what(rows[0]),
        "why": _why(name, rows),
        "count": len(rows),
        "incidents": [row["url"] for row in rows],
        "fingerprints": sorted({row["fingerprint"] for row in rows}),
        "places": sorted({_caught_words(row) for row in rows}),
        "stage": _stage(rows[0]),
        "module": _module(rows[0]),
        "kinds": sorted({row["kind"] for row in rows}),
        "steps": sorted({row["step"] for row in rows}),
        "runs": sorted({row["run_id"] for row in rows}),
        "first_seen": created[0],
        "last_seen": created[-1],
        "known": all(row["known"] for row in rows),
        "next": rows[0]["url"],
    }


def _stage(row: Row) -> str:
    origin = row["origin"] or {}
    return str(origin.get("stage") or row["stage"] or "none")


def _module(row: Row) -> str:
    """The module of the origin; without one, where it was caught is no module."""
    origin = row["origin"]
    if origin is None:
        return "not diagnosed" if row["findings"] != "no origin" else "none"
    if origin["where"] == "module":
        return origin["module"] or "the model"
    return str(origin["where"] or origin["module"] or "unknown")


def _what(row: Row) -> str:
    origin = row["origin"]
    if origin is None:
        words = _caught_words(row)
        return f"no origin found; {words}" if row["findings"] == "no origin" else words
    cause = (origin["cause"] or origin["kind"] or "").replace("_", " ")
    op = (origin["op"] or "").removeprefix("aten.")
    place = _module(row)
    if origin["where"] != "module" and origin["module"]:
        place = f"{place} {origin['module']}"
    return clean(f"{cause}: {f'{op} in ' if op else ''}{place}", 160)


def _caught_words(row: Row) -> str:
    caught = row["caught"]
    if caught is None:
        return f"{row['kind']}, nothing caught"
    tensor = str(caught["tensor"])
    stage = str(caught["stage"]).replace("_", " ")
    at = "" if tensor.replace("_", " ") == stage else f" at {stage}"
    alert = "alert on " if row["kind"] == "alert" else ""
    return f"{alert}{clean(tensor, 100)}{at}"


def _why(name: tuple[str, ...], rows: list[Row]) -> str:
    many = len(rows) > 1
    lead = f"All {number(len(rows))} have" if many else "The only one with"
    lead = "Both have" if len(rows) == 2 else lead
    if name[0] == "origin":
        _, kind, op, where, module, cause = name
        parts = [f"op {op}" if op else "", f"module {module}" if module else "", f"cause {cause}"]
        if not cause:
            parts[-1] = f"origin of kind {kind}"
        if where and where != "module":
            parts.insert(1, f"place {where}")
        same = joined([clean(part, 120) for part in parts if part], 6)
        return f"{lead} the same origin by diagnosis: {same}."
    place = _caught_words(rows[0])
    if name[0] == "no origin":
        return f"{lead} no origin by diagnosis, and the same place caught: {place}."
    return (
        f"{lead} the same stage and tensor: {place}. Not diagnosed, so causes may differ."
        if many
        else f"{lead} this stage and tensor: {place}. Not diagnosed."
    )


def _perhaps(group: Row, found: list[Row]) -> list[str]:
    """Groups by origin whose incidents were caught at the same place as these undiagnosed ones."""
    if group["by"] != "caught":
        return []
    return [
        other["id"]
        for other in found
        if other["by"] == "origin" and set(other["places"]) & set(group["places"])
    ]
