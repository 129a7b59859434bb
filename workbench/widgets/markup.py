"""HTML of the panel, from escaped pieces only.

Every name in a bundle is untrusted. ``esc`` is the only way text gets into markup.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from workbench.charts.words import shorten
from workbench.evidence.wording import visible

GLYPH = {
    "clean": "✓",
    "bad": "✕",
    "alert": "!",
    "skip": "↷",
    "running": "…",
    "not_run": "·",
    "unavailable": "–",
}
LONGEST = 64


def esc(text: object) -> str:
    """Text safe inside HTML, also inside a quoted attribute."""
    return html.escape(visible(str(text)), quote=True)


def middle(text: str, longest: int = LONGEST) -> str:
    """Cut a long name in its middle, keeping both ends."""
    return shorten(text, longest)


def name(text: str, longest: int = LONGEST) -> str:
    """A name in code font, cut in its middle, with the full text on hover."""
    short = middle(text, longest)
    title = f' title="{esc(text)}"' if short != text else ""
    return f"<code{title}>{esc(short)}</code>"


def link(action: str, label: str, title: str = "") -> str:
    """A link that sends ``action`` to the panel."""
    hover = f' title="{esc(title)}"' if title else ""
    return f'<a role="button" tabindex="0" data-wb="{esc(action)}"{hover}>{esc(label)}</a>'


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """A table with header cells.

    Args:
        heads: Plain texts.
        rows: Cells that are markup already.
        caption: Plain text read before the table.
    """
    head = "".join(f'<th scope="col">{esc(text)}</th>' for text in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>" for cells in rows
    )
    said = f"<caption>{esc(caption)}</caption>" if caption else ""
    return (
        f'<table class="wb-table">{said}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    )


def facts_table(rows: Iterable[tuple[str, str]]) -> str:
    """A two-column table of plain label and markup value."""
    body = "".join(
        f'<tr><th scope="row">{esc(label)}</th><td>{value}</td></tr>' for label, value in rows
    )
    return f'<table class="wb-table wb-facts-table"><tbody>{body}</tbody></table>'


def note(text: str, kind: str = "note") -> str:
    """One sentence in the place of something missing. ``text`` is markup."""
    return f'<div class="wb-{esc(kind)}">{text}</div>'
