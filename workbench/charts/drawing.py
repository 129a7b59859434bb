"""A small static SVG: for print, for readers without scripts, for notebooks without plotly.

A drawing is data (a list of elements from a short allow-list), so that it can travel inside a
notebook and be written as markup by whoever shows it, with every text escaped there.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.charts.style import FONT, LIGHT
from workbench.errors import UsageError
from workbench.evidence.wording import visible

_TAGS = frozenset({"line", "rect", "polyline", "text"})
_ATTRIBUTES = frozenset(
    {"x", "y", "x1", "x2", "y1", "y2", "width", "height", "points", "class", "text-anchor"}
)

# Class -> attributes for a reader without the page's style sheet.
_FALLBACK = {
    "wb-band": {"fill": LIGHT.finite, "fill-opacity": "0.2"},
    "wb-finite": {"stroke": LIGHT.finite, "fill": "none", "stroke-width": "1.5"},
    "wb-other": {
        "stroke": LIGHT.diagnostic,
        "fill": "none",
        "stroke-width": "1.5",
        "stroke-dasharray": "5 3",
    },
    "wb-nonfinite": {"fill": LIGHT.nonfinite, "font-size": "11"},
    "wb-step": {"stroke": LIGHT.nonfinite, "stroke-width": "1"},
    "wb-limit": {"stroke": LIGHT.muted, "stroke-width": "1", "stroke-dasharray": "1 3"},
    "wb-grid": {"stroke": LIGHT.grid, "stroke-width": "1"},
    "wb-tick": {"fill": LIGHT.muted, "font-size": "11"},
    "wb-ink": {"fill": LIGHT.ink, "font-size": "12"},
    "wb-skip": {"stroke": LIGHT.diagnostic, "stroke-width": "1.5"},
}


@dataclass
class Drawing:
    """A picture of fixed size.

    Attributes:
        width: Width in pixels of its own coordinates; it is scaled to the page.
        height: Height in pixels.
        title: What is shown, read aloud by screen readers.
        elements: ``(tag, attributes, text)`` of every element, in drawing order.
    """

    width: int
    height: int
    title: str
    elements: list[tuple[str, dict[str, str], str]] = field(default_factory=list)

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        """Add a straight line."""
        self._add("line", {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "class": kind})

    def rect(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        """Add a filled rectangle."""
        self._add("rect", {"x": x, "y": y, "width": width, "height": height, "class": kind})

    def polyline(self, points: list[tuple[float, float]], kind: str) -> None:
        """Add an open line through points."""
        text = " ".join(f"{_coordinate(x)},{_coordinate(y)}" for x, y in points)
        self._add("polyline", {"points": text, "class": kind})

    def text(self, x: float, y: float, text: str, kind: str, anchor: str = "start") -> None:
        """Add a text; ``anchor`` is ``start``, ``middle`` or ``end``."""
        self._add("text", {"x": x, "y": y, "class": kind, "text-anchor": anchor}, text)

    def _add(self, tag: str, attributes: Mapping[str, Any], text: str = "") -> None:
        written = {
            key: value if isinstance(value, str) else _coordinate(value)
            for key, value in attributes.items()
        }
        self.elements.append((tag, written, text))

    def as_dict(self) -> dict[str, Any]:
        """The drawing as JSON values."""
        return {
            "width": self.width,
            "height": self.height,
            "title": self.title,
            "elements": [list(element) for element in self.elements],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Drawing:
        """Read ``as_dict`` back, from a notebook that anyone may have written.

        Raises:
            UsageError: An element or attribute is not one a drawing has.
        """
        drawing = cls(int(data["width"]), int(data["height"]), str(data["title"]))
        for tag, attributes, text in data["elements"]:
            unknown = {tag} - _TAGS | set(attributes) - _ATTRIBUTES
            if unknown:
                raise UsageError(
                    f"The drawing {drawing.title[:80]!r} has the part {sorted(unknown)[0]!r}, "
                    "which no drawing of this package has, so it is not shown. "
                    "Make the report again."
                )
            values = {str(key): str(value) for key, value in attributes.items()}
            drawing.elements.append((tag, values, str(text)))
        return drawing

    def markup(self) -> str:
        """The drawing as an ``<svg>`` element; every text and attribute is escaped."""
        title, font = html.escape(visible(self.title)), html.escape(FONT)
        size = f"0 0 {self.width} {self.height}"
        parts = [
            f'<svg viewBox="{size}" role="img" aria-label="{title}" font-family="{font}">',
            f"<title>{title}</title>",
        ]
        for tag, attributes, text in self.elements:
            both = {**_FALLBACK.get(attributes.get("class", ""), {}), **attributes}
            # sorted: the same bytes whichever way the drawing travelled
            ordered = sorted(both.items())
            written = "".join(f' {key}="{html.escape(value)}"' for key, value in ordered)
            parts.append(f"<{tag}{written}>{html.escape(visible(text))}</{tag}>")
        return "".join([*parts, "</svg>"])


def _coordinate(value: float) -> str:
    """One decimal is below what a screen resolves and keeps the bytes the same everywhere."""
    text = f"{value:.1f}"
    return text.removesuffix(".0")
