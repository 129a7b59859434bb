"""The ranges chart as a static drawing."""

from __future__ import annotations

import math

from workbench.charts.drawing import Drawing
from workbench.charts.ranges_view import RangeView
from workbench.charts.words import GLYPHS, KIND_WORDS, number, shorten

_WIDTH, _HEIGHT = 960, 340
_LEFT, _RIGHT = 64, 950
_TOP, _BOTTOM = 78, 306
_STRIP = {"nan": 16, "pos_inf": 36, "neg_inf": 56}
_MAX_COUNTS = 40


def draw(
    view: RangeView, title: str, ticks: list[int], above: str, other: RangeView | None = None
) -> Drawing:
    """Draw a prepared view; of a second run only its largest magnitudes, dashed."""
    picture = Drawing(_WIDTH, _HEIGHT, title)
    _strip(picture, view)
    _grid(picture, view)
    _limits(picture, view)
    picture.text(_LEFT + 4, _TOP + (26 if view.line_at_top else 12), above, "wb-tick")
    width = (_RIGHT - _LEFT) / view.size
    for index in range(view.size):
        high, low = float(view.high[index]), float(view.low[index])
        if math.isfinite(high):
            top = _y(view, high)
            bottom = _y(view, low) if math.isfinite(low) else top
            left = _LEFT + index * width
            picture.rect(left, top, width, max(bottom - top, 1.0), "wb-band")
    _line(picture, view, [float(value) for value in view.rms], "wb-finite")
    if other is not None:
        _line(picture, view, _at_places(view, other), "wb-other")
    _ticks(picture, view, ticks)
    return picture


def _y(view: RangeView, value: float) -> float:
    low, high = math.log10(view.floor), math.log10(view.ceiling)
    part = (math.log10(value) - low) / (high - low)
    return _BOTTOM - min(max(part, 0.0), 1.0) * (_BOTTOM - _TOP)


def _x(view: RangeView, index: float) -> float:
    return _LEFT + (index + 0.5) * (_RIGHT - _LEFT) / view.size


def _strip(picture: Drawing, view: RangeView) -> None:
    for kind, y in _STRIP.items():
        picture.text(_LEFT - 6, y + 4, f"{GLYPHS[kind]} {KIND_WORDS[kind]}", "wb-tick", "end")
        if view.marks:
            picture.line(_LEFT, y, _RIGHT, y, "wb-grid")
    with_counts = len(view.marks) <= _MAX_COUNTS
    for layer, kind, count in view.marks:
        text = f"{GLYPHS[kind]} {number(count)}" if with_counts else GLYPHS[kind]
        # The glyph stands over its layer; near the right edge the count goes to its left.
        at = _x(view, layer)
        if with_counts and at > _RIGHT - 60:
            picture.text(
                at + 5, _STRIP[kind] + 4, f"{number(count)} {GLYPHS[kind]}", "wb-nonfinite", "end"
            )
        else:
            picture.text(at - 5, _STRIP[kind] + 4, text, "wb-nonfinite")
    if not view.marks:
        middle = (_LEFT + _RIGHT) / 2
        picture.text(middle, _STRIP["pos_inf"] + 4, "every value is finite", "wb-tick", "middle")


def _grid(picture: Drawing, view: RangeView) -> None:
    low, high = math.ceil(math.log10(view.floor)), math.floor(math.log10(view.ceiling))
    step = max(1, math.ceil((high - low) / 6))
    for exponent in range(low, high + 1, step):
        y = _y(view, 10.0**exponent)
        picture.line(_LEFT, y, _RIGHT, y, "wb-grid")
        picture.text(_LEFT - 6, y + 4, f"1e{exponent}".replace("-", "−"), "wb-tick", "end")


def _limits(picture: Drawing, view: RangeView) -> None:
    for limit in view.limits:
        if limit.place == "inside":
            y = _y(view, limit.value)
            picture.line(_LEFT, y, _RIGHT, y, "wb-limit")
            picture.text(_RIGHT, y - 3, limit.text, "wb-tick", "end")


def _line(picture: Drawing, view: RangeView, values: list[float], kind: str) -> None:
    points: list[tuple[float, float]] = []
    for index, value in enumerate(values):
        if math.isfinite(value):
            y = _y(view, value)
            points += [(_x(view, index - 0.5), y), (_x(view, index + 0.5), y)]
        elif points:
            picture.polyline(points, kind)
            points = []
    if points:
        picture.polyline(points, kind)


def _at_places(view: RangeView, other: RangeView) -> list[float]:
    places = {label: index for index, label in enumerate(view.labels)}
    values = [math.nan] * view.size
    for index, label in enumerate(other.labels):
        place = places.get(label, index)
        if place < view.size:
            values[place] = float(other.high[index])
    return values


def _ticks(picture: Drawing, view: RangeView, ticks: list[int]) -> None:
    for index in ticks:
        x = _x(view, index)
        anchor = "end" if x > _RIGHT - 60 else "middle"
        picture.line(x, _BOTTOM, x, _BOTTOM + 4, "wb-limit")
        picture.text(x, _BOTTOM + 18, shorten(view.labels[index], 18), "wb-tick", anchor)
