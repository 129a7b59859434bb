"""The timeline as a static drawing."""

from __future__ import annotations

import math

from workbench.charts.drawing import Drawing
from workbench.charts.timeline_view import WORDS, Series, TimelineView
from workbench.charts.words import GLYPHS, MISSING, number

_WIDTH, _HEIGHT = 960, 400
_LEFT, _RIGHT = 96, 946
_TOP, _ROW, _GAP = 22, 82, 8


def draw(view: TimelineView, title: str) -> Drawing:
    """Draw a prepared view."""
    picture = Drawing(_WIDTH, _HEIGHT, title)
    bottom = _TOP + len(view.series) * (_ROW + _GAP) - _GAP
    if view.incident is not None:
        x = _x(view, view.incident)
        picture.line(x, _TOP, x, bottom, "wb-step")
        anchor = "end" if x > (_LEFT + _RIGHT) / 2 else "start"
        text = f"incident, step {number(view.incident)}"
        picture.text(x, _TOP - 8, text, "wb-nonfinite", anchor)
    for row, series in enumerate(view.series):
        _row(picture, view, series, _TOP + row * (_ROW + _GAP))
    for record, _ in view.skips:
        foot = _TOP + 2 * (_ROW + _GAP) + _ROW
        x = _x(view, view.steps[record])
        picture.line(x, foot - 9, x, foot - 1, "wb-skip")
    for step in _ticks(view):
        picture.text(_x(view, step), bottom + 18, number(step), "wb-tick", "middle")
    picture.text((_LEFT + _RIGHT) / 2, bottom + 32, "step", "wb-tick", "middle")
    return picture


def _x(view: TimelineView, step: float) -> float:
    first, last = view.steps[0], view.steps[-1]
    pad = max(0.5, (last - first) * 0.015)
    part = (step - first + pad) / (last - first + 2 * pad)
    return _LEFT + min(max(part, 0.0), 1.0) * (_RIGHT - _LEFT)


def _ticks(view: TimelineView) -> list[int]:
    first, last = view.steps[0], view.steps[-1]
    count = min(6, last - first + 1)
    return sorted(
        {round(first + part * (last - first) / max(count - 1, 1)) for part in range(count)}
    )


def _row(picture: Drawing, view: TimelineView, series: Series, top: float) -> None:
    picture.line(_LEFT, top + _ROW, _RIGHT, top + _ROW, "wb-grid")
    picture.line(_LEFT, top, _LEFT, top + _ROW, "wb-grid")
    picture.text(_LEFT - 8, top + 14, WORDS[series.name], "wb-ink", "end")
    if not series.recorded:
        middle = (_LEFT + _RIGHT) / 2
        picture.text(middle, top + _ROW / 2, "not recorded", "wb-tick", "middle")
        return
    for value in _shown_values(series):
        picture.text(_LEFT - 8, _y(series, value, top) + 4, number(value), "wb-tick", "end")
    points: list[tuple[float, float]] = []
    for step, value in zip(view.steps, series.values, strict=True):
        if math.isfinite(value):
            points.append((_x(view, step), _y(series, float(value), top)))
        elif points:
            _stroke(picture, points)
            points = []
    _stroke(picture, points)
    for record in series.missing:
        x = _x(view, view.steps[record])
        picture.text(x, top + 0.12 * _ROW + 5, MISSING, "wb-tick", "middle")
    for record, kind in series.marks:
        x = _x(view, view.steps[record])
        picture.text(x, top + 0.12 * _ROW + 5, GLYPHS[kind], "wb-nonfinite", "middle")


def _stroke(picture: Drawing, points: list[tuple[float, float]]) -> None:
    if len(points) == 1:
        (x, y), *_ = points
        points = [(x - 2, y), (x + 2, y)]
    if points:
        picture.polyline(points, "wb-finite")


def _shown_values(series: Series) -> list[float]:
    """The smallest and largest finite value: what the row spans, in exact numbers."""
    finite = [float(value) for value in series.values if math.isfinite(value)]
    if not finite:
        return []
    low, high = min(finite), max(finite)
    close = abs(_part(series, high) - _part(series, low)) * _ROW < 14
    return [high] if close else [low, high]


def _part(series: Series, value: float) -> float:
    low, high = series.low, series.high
    if series.log:
        low, high, value = math.log10(low), math.log10(high), math.log10(value)
    return (value - low) / (high - low)


def _y(series: Series, value: float, top: float) -> float:
    return top + (1 - min(max(_part(series, value), 0.0), 1.0)) * _ROW
