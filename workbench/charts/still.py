"""A figure's first view as SVG, for the seconds in which plotly's script is not in the page yet.

It is made from the same description as the figure and stands where plotly draws it, so that
nothing moves when that takes its place. It knows what the timeline uses: lines, markers and texts
on axes with plotly's own ticks, straight shapes, and notes without arrows.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping
from typing import Any

from workbench.charts.style import FONT
from workbench.charts.ticks import Tick, ticks_of
from workbench.evidence.wording import visible

# Symbol -> path for a marker of radius 1, and whether it is filled.
_MARKS = {
    "circle": ("M1,0A1,1 0 1,1 0,-1A1,1 0 0,1 1,0Z", True),
    "x-thin-open": ("M1,1L-1,-1M1,-1L-1,1", False),
    "triangle-up": ("M-1.1547,0.5774H1.1547L0,-1.1547Z", True),
    "triangle-down": ("M-1.1547,-0.5774H1.1547L0,1.1547Z", True),
    "line-ew-open": ("M1.4,0H-1.4", False),
    "line-ns-open": ("M0,1.4V-1.4", False),
}
_DASHES = {"dot": "3px,3px", "dash": "9px,9px"}
_ANCHORS = {"left": "start", "center": "middle", "right": "end"}
Box = tuple[float, float, float, float]
"""Left, top, width and height in pixels."""


def still(spec: Mapping[str, Any], width: int) -> str:
    """The figure as an ``<svg>`` element.

    Args:
        spec: ``data`` and ``layout`` of the figure, as plain values.
        width: Width in pixels; the height is the layout's.
    """
    layout = spec["layout"]
    height, margin = int(layout["height"]), layout["margin"]
    plot = (
        float(margin["l"]),
        float(margin["t"]),
        float(width - margin["l"] - margin["r"]),
        float(height - margin["t"] - margin["b"]),
    )
    title = html.escape(visible(str(layout.get("meta", {}).get("title", ""))))
    parts = [
        f'<svg width="{width}" height="{height}" role="img" aria-label="{title}" ',
        f'font-family="{html.escape(FONT)}">',
    ]
    parts += _shapes(layout, plot)
    rows = [name for name in layout if name.startswith("yaxis")]
    for name in rows:
        parts += _grid(layout[name], _row(layout[name], plot))
    for trace in spec["data"]:
        axis = layout["yaxis" + str(trace.get("yaxis", "y"))[1:]]
        parts += _trace(trace, layout["xaxis"], axis, _row(axis, plot))
    for name in rows:
        parts += _y_axis(layout[name], _row(layout[name], plot))
    parts += _x_axis(layout["xaxis"], plot, layout["font"]["color"])
    parts += _notes(layout, plot)
    return "".join([*parts, "</svg>"])


def _row(axis: Mapping[str, Any], plot: Box) -> Box:
    """Where the traces of a y axis are drawn."""
    left, top, width, height = plot
    low, high = axis.get("domain", (0.0, 1.0))
    return (left, top + (1 - high) * height, width, (high - low) * height)


def _part(axis: Mapping[str, Any], value: float) -> float:
    """A value's place on its axis, 0 to 1."""
    low, high = axis["range"]
    if axis.get("type") == "log":
        value = math.log10(value) if value > 0 else -math.inf
    return float((value - low) / (high - low))


def _x(axis: Mapping[str, Any], value: float, box: Box) -> float:
    return box[0] + _part(axis, value) * box[2]


def _y(axis: Mapping[str, Any], value: float, box: Box) -> float:
    return box[1] + (1 - _part(axis, value)) * box[3]


def _path(d: str, colour: str, size: float, more: str = "") -> str:
    stroke = f'stroke="{html.escape(colour)}" stroke-width="{size:g}px"'
    return f'<path d="{d}" fill="none" {stroke}{more}/>'


def _text(
    at: tuple[float, float], text: str, font: Mapping[str, Any], kind: str, **how: Any
) -> str:
    """One text; ``bold`` and ``anchor`` are how it is set, ``raised`` markup that follows it."""
    written = html.escape(visible(text)) + str(how.get("raised", ""))
    bold = ' font-weight="bold"' if how.get("bold") else ""
    return (
        f'<text class="{kind}" x="{at[0]:.2f}" y="{at[1]:.2f}" font-size="{font["size"]:g}px" '
        f'fill="{html.escape(str(font["color"]))}" text-anchor="{how.get("anchor", "middle")}"'
        f"{bold}>{written}</text>"
    )


def _shapes(layout: Mapping[str, Any], plot: Box) -> Iterator[str]:
    """Vertical lines over all rows."""
    for shape in layout.get("shapes", ()):
        x = _x(layout["xaxis"], shape["x0"], plot)
        dash = _DASHES.get(shape["line"].get("dash", ""), "")
        more = f' stroke-dasharray="{dash}"' if dash else ""
        d = f"M{x:.2f},{plot[1] + plot[3]:.2f}V{plot[1]:.2f}"
        yield _path(d, shape["line"]["color"], shape["line"]["width"], more)


def _crisp(d: str, axis: Mapping[str, Any]) -> str:
    return _path(d, axis["gridcolor"], 1, ' shape-rendering="crispEdges"')


def _grid(axis: Mapping[str, Any], box: Box) -> Iterator[str]:
    if axis.get("showgrid", True):
        for tick in ticks_of(dict(axis), box[3]):
            y = box[1] + (1 - _along(axis, tick)) * box[3]
            yield _crisp(f"M{box[0]:g},{y:.2f}h{box[2]:g}", axis)


def _along(axis: Mapping[str, Any], tick: Tick) -> float:
    low, high = axis["range"]
    return float((tick.place - low) / (high - low))


def _label(tick: Tick, font: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """A tick's letters, and its exponent as markup."""
    scaled = {**font, "size": font["size"] * tick.size}
    if not tick.power:
        return scaled, ""
    return scaled, f'<tspan dy="-0.6em" font-size="70%">{html.escape(tick.power)}</tspan>'


def _y_axis(axis: Mapping[str, Any], box: Box) -> Iterator[str]:
    yield _crisp(f"M{box[0] - 0.5:g},{box[1]:.2f}v{box[3]:.2f}", axis)
    if not axis.get("showticklabels", True):
        return
    for tick in ticks_of(dict(axis), box[3]):
        y = box[1] + (1 - _along(axis, tick)) * box[3]
        font, raised = _label(tick, axis["tickfont"])
        at = (box[0] - 3.2, y + 0.35 * font["size"])
        yield _text(at, tick.text, font, "tick", anchor="end", raised=raised)


def _x_axis(axis: Mapping[str, Any], plot: Box, ink: str) -> Iterator[str]:
    left, top, width, height = plot
    bottom = top + height
    yield _crisp(f"M{left - 1:g},{bottom + 0.5:g}h{width + 1:g}", axis)
    for tick in ticks_of(dict(axis), width):
        at = (left + _along(axis, tick) * width, bottom + 14.2)
        yield _text(at, tick.text, axis["tickfont"], "tick")
    title = axis.get("title")
    if title:
        font = {"color": ink, **title["font"]}
        yield _text((left + width / 2, bottom + 37.2), title["text"], font, "title")


def _trace(
    trace: Mapping[str, Any], across: Mapping[str, Any], axis: Mapping[str, Any], box: Box
) -> Iterator[str]:
    points = [
        None if y is None else (_x(across, x, box), _y(axis, y, box))
        for x, y in zip(trace["x"], trace["y"], strict=True)
    ]
    seen = [one for one in points if one is not None]
    yield '<g class="trace">'
    if "lines" in trace["mode"]:
        line = trace["line"]
        for d in _strokes(points, steps=line.get("shape") == "hv"):
            yield _path(d, line["color"], line["width"], ' stroke-linejoin="round"')
    if "markers" in trace["mode"]:
        for at in seen:
            yield _mark(trace["marker"], *at)
    if trace["mode"] == "text":
        font = trace["textfont"]
        for (x, y), text in zip(seen, trace["text"], strict=True):
            plain = text.removeprefix("<b>").removesuffix("</b>")
            yield _text((x, y + 0.35 * font["size"]), plain, font, "mark", bold=plain != text)
    yield "</g>"


def _strokes(points: list[tuple[float, float] | None], *, steps: bool) -> list[str]:
    """The line in pieces; a value that is not there ends one."""
    pieces: list[str] = []
    before: tuple[float, float] | None = None
    for point in points:
        if point is not None:
            x, y = point
            if before is None:
                pieces.append(f"M{x:.2f},{y:.2f}")
            else:
                pieces[-1] += f"H{x:.2f}V{y:.2f}" if steps else f"L{x:.2f},{y:.2f}"
        before = point
    return pieces


def _mark(marker: Mapping[str, Any], x: float, y: float) -> str:
    d, filled = _MARKS[marker.get("symbol", "circle")]
    radius, colour = marker["size"] / 2, html.escape(marker["color"])
    stroke = marker.get("line", {}).get("width", 0)
    return (
        f'<path d="{d}" transform="translate({x:.2f},{y:.2f}) scale({radius:g})" '
        f'fill="{colour if filled else "none"}" stroke="{colour}" stroke-width="{stroke:g}px" '
        f'vector-effect="non-scaling-stroke"/>'
    )


def _notes(layout: Mapping[str, Any], plot: Box) -> Iterator[str]:
    left, top, width, height = plot
    for note in layout.get("annotations", ()):
        on_axis = note["xref"] == "x"
        x = _x(layout["xaxis"], note["x"], plot) if on_axis else left + note["x"] * width
        x += {"left": 2, "right": -1.5}.get(note["xanchor"], 0)
        at = (x, top + (1 - note["y"]) * height - 5)
        anchor = _ANCHORS[note["xanchor"]]
        yield _text(at, note["text"], note["font"], "note", anchor=anchor)
