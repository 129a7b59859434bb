"""The card of one layer: its numbers, where its bad elements are, what it came from, its spread."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.charts.words import KIND_WORDS, KINDS, number
from workbench.evidence.wording import counted
from workbench.widgets.layer_rows import LayerRow
from workbench.widgets.markup import esc, link, middle, name

MOST_BARS = 64


def card(row: LayerRow, rows: Sequence[LayerRow] = (), opened: frozenset[str] = frozenset()) -> str:
    """Markup about a layer.

    Args:
        row: The layer.
        rows: All rows on screen, to link what it came from.
        opened: ``upstream`` and ``histogram`` where they are open.
    """
    return _facts(row) + _actions(row, opened) + _upstream(row, rows, opened) + _hist(row, opened)


def _facts(row: LayerRow) -> str:
    bad = [f"{number(n)} {KIND_WORDS[kind]}" for kind, n in row.counts if kind in KINDS and n]
    colour = "wb-bad" if row.nonfinite else ""
    pieces = [
        f'<b class="{colour}">{esc(row.mark)}</b> {name(row.label, 56)}',
        f"{esc(row.dtype)} {esc(row.shape)}",
        f'<span class="{colour}">{esc(", ".join(bad) or "all finite")}</span>',
    ]
    if row.first is not None:
        pieces.append(f"first at {esc(list(row.first))}")
    if dict(row.counts)["finite"]:
        pieces.append(f"min {number(row.low)} · max {number(row.high)}{_of_limit(row)}")
        if row.rms == row.rms:
            pieces.append(f"rms {number(row.rms)}")
    else:
        pieces.append("no finite element")
    if row.zeros:
        pieces.append(f"{number(row.zeros)} zeros")
    if row.subnormals:
        pieces.append(f"{number(row.subnormals)} subnormals")
    if row.source:
        pieces.append(f"<code>{esc(middle(row.source, 40))}</code>")
    if row.op:
        pieces.append(f"from {name(row.op, 40)}")
    return " · ".join(pieces)


def _of_limit(row: LayerRow) -> str:
    if row.share is None or row.share < 0.01:
        return ""
    return f" (max|x| is {row.share:.0%} of the {esc(row.dtype)} limit)"


def _actions(row: LayerRow, opened: frozenset[str]) -> str:
    links = []
    if row.upstream:
        links.append(link("upstream", "Upstream " + ("▾" if "upstream" in opened else "▸")))
    if row.exponents:
        links.append(link("histogram", "Histogram " + ("▾" if "histogram" in opened else "▸")))
    return f' <span class="wb-card-links">{" ".join(links)}</span>' if links else ""


def _upstream(row: LayerRow, rows: Sequence[LayerRow], opened: frozenset[str]) -> str:
    if "upstream" not in opened or not row.upstream:
        return ""
    said = []
    for module in row.upstream:
        before = [one for one in rows if one.module == module and one.index != row.index]
        # the nearest earlier call of that module, where there were several
        near = [one for one in before if one.index < row.index] or before
        if near:
            found = near[-1]
            mark = f"{found.mark} " if found.mark.strip() else ""
            said.append(link(f"layer:{found.index}", mark + middle(found.label, 48), found.label))
        else:
            said.append(name(module or "the model", 48))
    return f'<div class="wb-note wb-card-part">Given the results of: {", ".join(said)}</div>'


def _hist(row: LayerRow, opened: frozenset[str]) -> str:
    if "histogram" not in opened or not row.exponents:
        return ""
    first, counts = row.exponents[0], list(row.exponents[1:])
    step = -(-len(counts) // MOST_BARS)
    bars = [sum(counts[i : i + step]) for i in range(0, len(counts), step)]
    most = max(bars)
    drawn = "".join(
        f'<i style="height:{max(round(52 * n / most), 1) if n else 0}px" '
        f'title="|x| from 2^{first + i * step} to 2^{first + (i + 1) * step}: {number(n)}"></i>'
        for i, n in enumerate(bars)
    )
    low, high = 2.0**first, 2.0 ** (first + len(counts))
    said = (
        f"How many finite elements have which magnitude, by powers of 2; "
        f"{counted(sum(counts), 'element')}; left out: {counted(row.zeros, 'zero')}."
    )
    return (
        f'<div class="wb-hist-row wb-card-part"><span class="wb-dim">{number(low)}</span>'
        f'<span class="wb-hist" role="img" aria-label="{esc(said)}">{drawn}</span>'
        f'<span class="wb-dim">{number(high)}</span> <span class="wb-dim">{esc(said)}</span></div>'
    )
