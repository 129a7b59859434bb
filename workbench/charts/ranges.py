"""Ranges: the magnitude of every layer's tensors in execution order, with dtype limits.

The y axis is log10 of the magnitude of finite elements. What is not finite stands on a strip of
its own above the plot, one mark a layer and kind, however many layers there are.
"""

from __future__ import annotations

import math
from typing import Any

import plotly.graph_objects as go

from workbench.charts import style
from workbench.charts.arrays import TableLike
from workbench.charts.drawing import Drawing
from workbench.charts.grouping import MAX_LAYERS
from workbench.charts.ranges_hover import hover_texts
from workbench.charts.ranges_view import RangeView, range_view
from workbench.charts.rows import Rows
from workbench.charts.ticks import decades
from workbench.charts.words import GLYPHS, KIND_WORDS, KINDS, number, plain, shorten
from workbench.evidence.wording import counted

CHART_ID = "wb-ranges"
_PLOT_TOP = 0.78
_STRIP = (0.83, 1.0)
_STRIP_ROWS = {"neg_inf": 0, "pos_inf": 1, "nan": 2}
# More counts than this beside each other overlap; they stay in hover and table.
_MAX_COUNT_TEXTS = 30
_MAX_TICKS = 14
_BAND_WORDS = {
    True: "Band from smallest to largest magnitude of finite elements that are not zero; line: "
    "root mean square",
    False: "Band from root mean square (line) to largest magnitude of finite elements",
}


def figure(
    layers: TableLike,
    tensor: str = "activations",
    other: TableLike | None = None,
    theme: style.Theme = "light",
    max_layers: int = MAX_LAYERS,
    height: int = 360,
    diagnostic: bool = False,
) -> go.Figure:
    """Draw the ranges of one kind of tensor.

    Args:
        layers: The layers table of a trace.
        tensor: ``activations``, ``gradients``, ``parameters``, ``moments`` or ``updates``.
        other: The layers table of a second (diagnostic) run, drawn dashed over the first.
        theme: Palette of lines, grid and texts.
        max_layers: Above this many, layers are grouped by module.
        height: Height in pixels.
        diagnostic: Whether the first table is of a diagnostic run: dashed, with nothing filled.

    Raises:
        UsageError: The kind is unknown or the table has no row of it.
    """
    view = range_view(layers, tensor, max_layers)
    hover = hover_texts(view)
    traces = [_band(view, hover, theme), _rms(view, theme), *marks_of(view, hover, theme)]
    if diagnostic:
        traces = _dashed(view, hover, theme)
    if other is not None:
        traces.extend(_overlay(view, range_view(other, tensor, max_layers), theme))
    return go.Figure(data=traces, layout=layout_of(view, theme, height))


def _band(view: RangeView, hover: list[str], theme: style.Theme) -> go.Bar:
    drawn = [i for i in range(view.size) if math.isfinite(view.high[i])]
    low = [_below(float(view.low[i]), float(view.high[i])) for i in drawn]
    return go.Bar(
        name="finite",
        x=drawn,
        base=low,
        y=[float(view.high[i]) - base for i, base in zip(drawn, low, strict=True)],
        marker={"color": style.PALETTES[theme].band, "line": {"width": 0}},
        hovertext=[hover[i] for i in drawn],
        hoverinfo="text",
    )


def _below(low: float, high: float) -> float:
    """A bar of no height cannot be hovered: constants get a sliver."""
    low = low if math.isfinite(low) else high
    return min(low, high / 1.03)


def _rms(view: RangeView, theme: style.Theme, dash: str = "solid", colour: str = "") -> go.Scatter:
    x, y = _steps(view.rms)
    return go.Scatter(
        name="root mean square",
        x=x,
        y=y,
        mode="lines",
        line={"color": colour or style.PALETTES[theme].finite, "width": 1.6, "dash": dash},
        hoverinfo="skip",
    )


def _steps(values: Any) -> tuple[list[float | None], list[float | None]]:
    """A horizontal stroke per layer, joined to the next: layers are not points of a curve."""
    x: list[float | None] = []
    y: list[float | None] = []
    for index, value in enumerate(values):
        good = math.isfinite(value)
        x.extend([index - 0.5, index + 0.5])
        y.extend([float(value) if good else None] * 2)
    return x, y


def marks_of(
    view: RangeView, hover: list[str], theme: style.Theme, *, run: str = "", open_: bool = False
) -> list[go.Scatter]:
    """The non-finite marks on their strip, one trace a kind."""
    colours = style.PALETTES[theme]
    colour = colours.diagnostic if open_ else colours.nonfinite
    traces = []
    for kind in KINDS:
        marks = [(layer, count) for layer, found, count in view.marks if found == kind]
        if not marks:
            continue
        with_text = len(view.marks) <= _MAX_COUNT_TEXTS and not open_
        symbol = style.SYMBOLS[kind]
        traces.append(
            go.Scatter(
                name=f"{run}{KIND_WORDS[kind]}",
                x=[layer for layer, _ in marks],
                y=[_STRIP_ROWS[kind]] * len(marks),
                yaxis="y2",
                mode="markers+text" if with_text else "markers",
                text=[number(count) for _, count in marks] if with_text else None,
                textposition="middle right",
                textfont={"color": colour, "size": 11},
                marker={
                    "symbol": f"{symbol}-open" if open_ and "open" not in symbol else symbol,
                    "size": 9,
                    "color": colour,
                    "line": {"width": 2.5 if kind == "nan" else 1, "color": colour},
                },
                hovertext=[hover[layer] for layer, _ in marks],
                hoverinfo="text",
                cliponaxis=False,
            )
        )
    return traces


def _dashed(view: RangeView, hover: list[str], theme: style.Theme) -> list[Any]:
    """A diagnostic run alone; the bars are there to be hovered over and are not seen."""
    colour = style.PALETTES[theme].diagnostic
    bars = _band(view, hover, theme)
    bars.marker.color = "rgba(0,0,0,0)"
    edges = [
        _line(f"{which} magnitude", values, colour, "dash")
        for which, values in (("largest", view.high), ("smallest", view.low))
    ]
    rms = _rms(view, theme, "dot", colour)
    return [bars, *edges, rms, *marks_of(view, hover, theme)]


def _line(name: str, values: Any, colour: str, dash: str) -> go.Scatter:
    x, y = _steps(values)
    line = {"color": colour, "width": 1.4, "dash": dash}
    return go.Scatter(name=name, x=x, y=y, mode="lines", line=line, hoverinfo="skip")


def _overlay(view: RangeView, other: RangeView, theme: style.Theme) -> list[Any]:
    """The second run at the first one's places, matched by name, then by order."""
    places = {label: index for index, label in enumerate(view.labels)}
    colour = style.PALETTES[theme].diagnostic
    moved = [places.get(label, index) for index, label in enumerate(other.labels)]
    high: list[float] = [math.nan] * view.size
    for index, place in enumerate(moved):
        if place < view.size:
            high[place] = float(other.high[index])
    line = _line("diagnostic run, largest magnitude", high, colour, "dash")
    marks = marks_of(other, hover_texts(other), theme, run="diagnostic run, ", open_=True)
    for trace in marks:
        trace.x = [moved[int(index)] for index in trace.x]
    return [line, *marks]


def layout_of(view: RangeView, theme: style.Theme, height: int) -> dict[str, Any]:
    """Axes, strip, limit lines and size."""
    shared = style.layout(theme, height)
    ticks = tick_places(view)
    shared.update(
        margin={"l": 64, "r": 16, "t": 8, "b": 92},
        bargap=0.0,
        meta={"id": CHART_ID, "title": title(view)},
        xaxis=style.axis(
            theme,
            tickmode="array",
            tickvals=ticks,
            ticktext=[plain(shorten(view.labels[i], 20)) for i in ticks],
            tickangle=-35,
            range=[-0.6, view.size - 0.4],
            showgrid=False,
            anchor="y",
        ),
        yaxis=style.axis(
            theme,
            type="log",
            domain=[0.0, _PLOT_TOP],
            range=[math.log10(view.floor), math.log10(view.ceiling)],
            **decades(view.floor, view.ceiling, 7, powers=True),
            title={"text": "|finite|, log₁₀", "font": {"size": 12}},
        ),
        yaxis2=style.axis(
            theme,
            domain=list(_STRIP),
            range=[-0.6, 2.6],
            fixedrange=True,
            tickmode="array",
            tickvals=list(_STRIP_ROWS.values()),
            ticktext=[f"{GLYPHS[kind]} {KIND_WORDS[kind]}" for kind in _STRIP_ROWS],
            anchor="x",
        ),
    )
    shared["shapes"], shared["annotations"] = limit_lines(view, theme)
    if not view.marks:
        shared["annotations"].append(_strip_note(theme))
    return shared


def limit_lines(view: RangeView, theme: style.Theme) -> tuple[list[Any], list[Any]]:
    """The dtype limits as lines and their names at the line."""
    colour = style.PALETTES[theme].muted
    shapes, notes = [], []
    for limit in view.limits:
        if limit.place == "inside":
            shapes.append(
                {
                    "type": "line",
                    "xref": "paper",
                    "x0": 0,
                    "x1": 1,
                    "yref": "y",
                    "y0": limit.value,
                    "y1": limit.value,
                    "line": {"color": colour, "width": 1, "dash": "dot"},
                    "layer": "below",
                }
            )
            notes.append(
                {
                    "text": plain(limit.text),
                    "xref": "paper",
                    "x": 1,
                    "xanchor": "right",
                    "yref": "y",
                    "y": math.log10(limit.value),
                    "yanchor": "bottom",
                    "showarrow": False,
                    "font": {"size": 11, "color": colour},
                }
            )
    above = above_words(view)
    if above:
        notes.append(
            {
                "text": plain(above),
                "xref": "paper",
                "x": 0,
                "xanchor": "left",
                "yref": "paper",
                "y": _PLOT_TOP,
                "yanchor": "top",
                # clear of the highest limit line, where that is just there
                "yshift": -14 if view.line_at_top else 0,
                "showarrow": False,
                "font": {"size": 11, "color": colour},
            }
        )
    return shapes, notes


def above_words(view: RangeView) -> str:
    """The limits that lie too far above the data to be drawn, in words."""
    texts = [limit.text for limit in view.limits if limit.place == "above"]
    return f"↑ far above: {'; '.join(texts)}" if texts else ""


def _strip_note(theme: style.Theme) -> dict[str, Any]:
    return {
        "text": "every value is finite",
        "xref": "paper",
        "x": 0.5,
        "yref": "y2",
        "y": 1,
        "showarrow": False,
        "bgcolor": style.PALETTES[theme].paper,
        "font": {"size": 12, "color": style.PALETTES[theme].muted},
    }


def tick_places(view: RangeView, most: int = _MAX_TICKS) -> list[int]:
    """Layers named under the axis: evenly spread, and the first with a non-finite mark."""
    step = max(1, math.ceil(view.size / most))
    places = set(range(0, view.size, step))
    if view.marks:
        first = min(layer for layer, _, _ in view.marks)
        places = {p for p in places if abs(p - first) >= step} | {first}
    return sorted(places)


def title(view: RangeView) -> str:
    """One sentence that says what is shown, for captions and screen readers."""
    total = int(view.layers["members"].values.sum())
    grouped = f", grouped by module into {number(view.size)}" if total != view.size else ""
    bad = len({layer for layer, _, _ in view.marks})
    with_marks = f"{number(bad)} with NaN or Inf" if bad else "none with NaN or Inf"
    return (
        f"Ranges of {view.tensor} in execution order: {counted(total, 'tensor')}{grouped}, "
        f"{with_marks}. {_BAND_WORDS[view.from_smallest]}."
    )


def table(
    layers: TableLike,
    tensor: str = "activations",
    other: TableLike | None = None,
    max_layers: int = MAX_LAYERS,
) -> Rows:
    """The same layers as rows; of a second run the largest magnitude and its counts are added."""
    view = range_view(layers, tensor, max_layers)
    data = {str(name): view.layers[name].values for name in view.layers.data_vars}
    headers = ["Layer", "dtype", "Shape", "NaN", "+Inf", "−Inf", "Finite", "Min", "Max", "rms"]
    rows = [_cells(data, row) for row in range(view.size)]
    if other is not None:
        second = range_view(other, tensor, max_layers)
        found = {label: index for index, label in enumerate(second.labels)}
        headers += ["Diagnostic run: max |x|", "NaN or Inf"]
        rows = [
            (*cells, *_other_cells(second, found.get(label)))
            for cells, label in zip(rows, view.labels, strict=True)
        ]
    headers.append("Source")
    sources = [str(source) for source in data["source"]]
    rows = [(*cells, source) for cells, source in zip(rows, sources, strict=True)]
    numeric = tuple(range(3, len(headers) - 1))
    return Rows(title(view), tuple(headers), tuple(rows), numeric)


def _cells(data: dict[str, Any], row: int) -> tuple[str, ...]:
    names = [str(data[name][row]) for name in ("label", "dtype", "shape")]
    found = [number(int(data[kind][row])) for kind in (*KINDS, "finite")]
    has_values = int(data["finite"][row]) > 0
    values = [
        number(float(data[name][row]) if has_values else None) for name in ("min", "max", "rms")
    ]
    return (*names, *found, *values)


def _other_cells(view: RangeView, row: int | None) -> tuple[str, str]:
    if row is None:
        return "not run", ""
    bad = sum(int(view.layers[kind].values[row]) for kind in KINDS)
    absmax = float(view.layers["absmax"].values[row])
    return number(None if math.isnan(absmax) else absmax), number(bad)


def drawing(
    layers: TableLike,
    tensor: str = "activations",
    other: TableLike | None = None,
    max_layers: int = MAX_LAYERS,
) -> Drawing:
    """The same arrays as a small static picture."""
    from workbench.charts.ranges_drawing import draw

    view = range_view(layers, tensor, max_layers)
    second = None if other is None else range_view(other, tensor, max_layers)
    return draw(view, title(view), tick_places(view, 8), above_words(view), second)
