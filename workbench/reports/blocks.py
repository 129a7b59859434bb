"""Sections of a report as data: what a notebook cell returns and the page is written from.

A section is a list of blocks of plain JSON values. It shows itself in a notebook and travels in
the notebook's outputs; the HTML page is written from that data, not from the notebook's HTML, so
that every text is escaped in one place, on the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.charts.drawing import Drawing
from workbench.charts.rows import Rows
from workbench.numerics import jsonio

MIMETYPE = "application/vnd.workbench.section+json"
PLOTLY = "application/vnd.plotly.v1+json"
FINDINGS = "application/vnd.workbench.findings+json"

Block = dict[str, Any]


def paragraph(text: str, tone: str = "") -> Block:
    """A paragraph; ``tone`` is ``""``, ``bad``, ``alert`` or ``muted``."""
    return {"type": "paragraph", "text": text, "tone": tone}


def heading(text: str) -> Block:
    """A heading inside of a section."""
    return {"type": "heading", "text": text}


def bullets(items: Sequence[str]) -> Block:
    """A list of sentences."""
    return {"type": "bullets", "items": list(items)}


def steps(items: Sequence[Sequence[str]], label: str) -> Block:
    """A numbered chain of ``(sentence, source)``, in the order things happened."""
    return {"type": "steps", "label": label, "items": [list(item) for item in items]}


def facts(rows: Sequence[tuple[str, str, str]]) -> Block:
    """Rows of ``(name, text, anchor)``; the anchor is that of the section with the evidence."""
    return {"type": "facts", "rows": [list(row) for row in rows]}


def table(rows: Rows, folded: bool = False) -> Block:
    """A table; folded it is one click away."""
    return {"type": "table", "folded": folded, **rows.as_dict()}


def title(text: str, aside: str, headline: str, tone: str) -> Block:
    """The first lines of a report."""
    return {"type": "title", "text": text, "aside": aside, "headline": headline, "tone": tone}


def code(text: str, label: str) -> Block:
    """Text to be read or copied as it is."""
    return {"type": "code", "text": text, "label": label}


def links(caption: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Block:
    """A table whose first column opens a file beside the page.

    Args:
        caption: One sentence that says what the rows are.
        headers: Column names.
        rows: ``(text, file name or empty, further columns …)``.
    """
    plain = [[str(cell) for cell in row] for row in rows]
    return {"type": "links", "caption": caption, "headers": list(headers), "rows": plain}


def markdown(text: str) -> Block:
    """Text that somebody wrote: paragraphs, lists and emphasis; everything else is escaped."""
    return {"type": "markdown", "text": text}


def contents() -> Block:
    """The place of the contents list, which only the page can fill."""
    return {"type": "contents"}


def chart(chart_id: str, figure: Any, rows: Rows, drawing: Drawing) -> Block:
    """A chart with its table and its static picture."""
    from workbench.charts.style import CONFIG

    # Through the strict codec: a NaN that slipped into a figure stops here, not in a browser.
    plain = jsonio.loads(figure.to_json())
    return {
        "type": "chart",
        "id": chart_id,
        "caption": rows.caption,
        "figure": {**plain, "config": CONFIG},
        "table": rows.as_dict(),
        "drawing": drawing.as_dict(),
    }


@dataclass
class Section:
    """What one cell of a template shows.

    Attributes:
        name: Anchor of the section.
        blocks: Its blocks, top to bottom.
        findings: JSON text of findings that travel with the notebook, or empty.
    """

    name: str
    blocks: list[Block] = field(default_factory=list)
    findings: str = ""

    def _repr_html_(self) -> str:
        from workbench.reports.render import render_blocks

        return str(render_blocks(self.blocks))

    def _ipython_display_(self) -> None:
        from IPython.display import publish_display_data

        for bundle in self.bundles():
            publish_display_data(bundle)

    def bundles(self) -> list[dict[str, Any]]:
        """One MIME bundle per chart and per run of other blocks.

        A notebook shows a chart as plotly JSON, which also works where the notebook is not
        trusted; everything else as escaped HTML.
        """
        from workbench.reports.render import render_blocks

        shown = []
        for group in _groups(self.blocks):
            bundle: dict[str, Any] = {
                MIMETYPE: {"name": self.name, "blocks": group},
                "text/html": str(render_blocks(group)),
                "text/plain": plain_text(group),
            }
            if group[0]["type"] == "chart":
                bundle[PLOTLY] = group[0]["figure"]
            shown.append(bundle)
        if self.findings:
            shown.append({FINDINGS: {"text": self.findings}, "text/plain": "findings"})
        return shown


def _groups(blocks: list[Block]) -> list[list[Block]]:
    groups: list[list[Block]] = []
    for block in blocks:
        alone = block["type"] == "chart"
        if alone or not groups or groups[-1][0]["type"] == "chart":
            groups.append([block])
        else:
            groups[-1].append(block)
    return groups


def plain_text(blocks: Sequence[Block]) -> str:
    """The blocks as text, for terminals and readers without HTML."""
    return "\n".join(line for block in blocks for line in _lines(block))


def _lines(block: Block) -> list[str]:
    kind = block["type"]
    if kind == "title":
        return [block["text"], block["headline"]]
    if kind == "facts":
        return [f"{name}: {text}" for name, text, _ in block["rows"]]
    if kind == "bullets":
        return [f"- {item}" for item in block["items"]]
    if kind == "steps":
        return [f"{n}. {' '.join(item)}" for n, item in enumerate(block["items"], 1)]
    if kind == "links":
        return [block["caption"], *("\t".join(row) for row in block["rows"])]
    if kind == "table":
        return [block["caption"], *("\t".join(row) for row in block["rows"])]
    if kind == "chart":
        return [block["caption"]]
    return [str(block.get("text", ""))]
