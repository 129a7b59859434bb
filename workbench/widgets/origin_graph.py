"""The way from the origin to the gate, drawn as boxes and arrows behind one click."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.charts.words import GLYPHS
from workbench.evidence.wording import counted
from workbench.widgets.findings import items, mapping, place
from workbench.widgets.markup import esc, link, middle, name
from workbench.widgets.state import State

KINDS = (("nan", "NaN"), ("pos_inf", "+Inf"), ("neg_inf", "−Inf"))
MOST_BESIDE = 6


def graph(state: State) -> str:
    """The link that opens the drawing, and the drawing where it is open."""
    rows = items(state.findings, "chain")
    if not rows:
        return ""
    opened = "graph" in state.look.open
    toggle = link("graph", "Draw as graph " + ("▾" if opened else "▸"))
    return f"<p>{toggle}</p>" + (_drawing(state, rows) if opened else "")


def _drawing(state: State, rows: list[Mapping[str, Any]]) -> str:
    origins = items(state.findings, "origins")
    first = mapping(origins[0] if origins else {}).get("event")
    boxes = []
    for row in rows:
        boxes.append(_box(row, born=row.get("event") == first))
        if isinstance(row.get("skipped"), int):
            boxes.append(f'<li class="wb-graph-skip">… {counted(row["skipped"], "op")} …</li>')
    caught = f'<b>Caught at</b><span class="wb-bad">{esc(state.facts.caught_at)}</span>'
    boxes.append(f'<li class="wb-graph-box">{caught}</li>')
    shown = {row.get("event") for row in rows}
    beside = [one for one in origins[1:] if one.get("event") not in shown]
    return f'<ol class="wb-graph">{"".join(boxes)}</ol>' + _beside(beside)


def _box(row: Mapping[str, Any], *, born: bool) -> str:
    op = str(row.get("op") or "")
    lines = [f"<b>{'Born at ' if born else ''}</b>{name(op, 30)}", _counts(row)]
    at = place(row)
    if at:
        lines.append(f'<span class="wb-dim" title="{esc(at)}">{esc(middle(at, 34))}</span>')
    event = row.get("event")
    if isinstance(event, int) and event >= 0:
        lines.append(link(f"event:{event}", "card"))
    kind = "wb-graph-box wb-graph-born" if born else "wb-graph-box"
    return f'<li class="{kind}">{"".join(f"<span>{line}</span>" for line in lines if line)}</li>'


def _counts(row: Mapping[str, Any]) -> str:
    counts = mapping(row.get("counts"))
    found = [(GLYPHS[key], counts.get(key), word) for key, word in KINDS]
    said = [f"{glyph} {n:,} {word}" for glyph, n, word in found if isinstance(n, int) and n]
    if said:
        return f'<span class="wb-bad">{esc(" ".join(said))}</span>'
    return esc(str(row.get("sentence") or "").partition(" ")[2])


def _beside(origins: list[Mapping[str, Any]]) -> str:
    """Origins that this way does not lead through."""
    if not origins:
        return ""
    shown = [f"{name(str(o.get('op') or ''))} {esc(place(o))}" for o in origins[:MOST_BESIDE]]
    more = len(origins) - MOST_BESIDE
    said = "; ".join(shown) + (f"; {more:,} more" if more > 0 else "")
    return f'<p class="wb-dim">Not on this way, also born in this step: {said}</p>'
