"""The layer list as a tree of modules: what looks bad first, then groups that open."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.widgets.layer_rows import MAX_SHOWN, LayerRow, by_risk
from workbench.widgets.markup import middle

FLAT = 14
"""Up to this many layers are listed one by one, riskiest first."""
MOST_SUSPICIOUS = 40

Option = tuple[str, int | str]
"""What is read, and the layer's index or the path of a group."""


def options(rows: Sequence[LayerRow], search: str, group: str) -> list[Option]:
    """What the list shows.

    Args:
        rows: All rows, in execution order.
        search: With a text, all layers whose name holds it, riskiest first and no groups.
        group: The module path whose inside is listed; empty for the top.
    """
    if search.strip() or len(rows) <= FLAT:
        return [_leaf(row) for row in by_risk(list(rows), search)[:MAX_SHOWN]]
    if group:
        inside = [row for row in rows if _within(row.label, group)]
        parent = group.rpartition(".")[0]
        return [(f"◂ {middle(group, 36)}", f"^{parent}"), *_level(inside, group)[:MAX_SHOWN]]
    marked = [row for row in by_risk(list(rows)) if row.mark.strip()][:MOST_SUSPICIOUS]
    first = {row.index for row in marked}
    # a row has one place in the list: what stands first is left out below, groups still count it
    below = [option for option in _level(rows, "") if option[1] not in first]
    return [*(_leaf(row) for row in marked), *below[:MAX_SHOWN]]


def _leaf(row: LayerRow) -> Option:
    return (f"{row.mark} {middle(row.label, 40)}", row.index)


def _within(label: str, group: str) -> bool:
    return label == group or label.startswith((f"{group}.", f"{group} "))


def _level(rows: Sequence[LayerRow], group: str) -> list[Option]:
    """Groups and single layers one level below ``group``, in execution order."""
    start = group.count(".") + 1 if group else 0
    members: dict[str, list[LayerRow]] = {}
    for row in rows:
        pieces = row.label.split(".")
        members.setdefault(".".join(pieces[: start + 1]), []).append(row)
    if len(members) == 1 and len(rows) > 1 and start < 12:
        only = next(iter(members))
        if only != group and all(_within(row.label, only) for row in rows):
            return _level(rows, only)
    found: list[Option] = []
    for path, inside in members.items():
        if len(inside) == 1 or path == group:
            found += [_leaf(row) for row in inside]
        else:
            worst = by_risk(inside)[0].mark
            found.append((f"{worst} {middle(path, 30)} ({len(inside):,}) ▸", path))
    return found
