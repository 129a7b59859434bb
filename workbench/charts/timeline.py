"""Timeline: loss, gradient norm, loss scale and learning rate over steps, one above the other.

It needs only the ledger, no replay. A value that is not finite is a mark at the top of its row,
never a gap; a withheld update is a tick at the foot of the scale's row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.charts import style
from workbench.charts.drawing import Drawing
from workbench.charts.rows import Rows
from workbench.charts.ticks import decades
from workbench.charts.timeline_view import (
    STEPS_BEFORE,
    WORDS,
    Series,
    TimelineView,
    timeline_view,
)
from workbench.charts.words import KIND_WORDS, KINDS, number, plain
from workbench.evidence.wording import counted

if TYPE_CHECKING:
    import plotly.graph_objects as go

CHART_ID = "wb-timeline"
Ledger = Sequence[Mapping[str, Any]]
Trace = dict[str, Any]
_GAP = 0.07
_SKIP_WORDS = {"scaler": "update skipped by the loss scaler", "gate": "update withheld by the gate"}


def figure(
    ledger: Ledger,
    incident: int | None = None,
    before: int = STEPS_BEFORE,
    rank: int | None = None,
    theme: style.Theme = "light",
    height: int = 440,
    chosen: int | None = None,
) -> go.Figure:
    """Draw the timeline.

    Args:
        ledger: L1 records in the order they were written.
        incident: Step of the incident, drawn as a vertical line.
        before: How many steps before the incident are shown.
        rank: Keep only this rank's records.
        theme: Palette of lines, grid and texts.
        height: Height in pixels.
        chosen: Step that is looked at, drawn as a dotted line.

    Raises:
        UsageError: The ledger has no record to show.
    """
    view = timeline_view(ledger, incident, before, rank)
    return as_figure(spec(view, theme, height, chosen))


def as_figure(described: dict[str, Any]) -> go.Figure:
    """The figure of a ``spec``."""
    import plotly.graph_objects as go

    return go.Figure(described)


def spec(view: TimelineView, theme: style.Theme, height: int, chosen: int | None) -> dict[str, Any]:
    """The figure's data and layout as plain values: a first view is drawn without plotly."""
    traces: list[Trace] = []
    for row, series in enumerate(view.series):
        traces.append(_line(view, series, row, theme))
        traces.extend(_marks(view, series, row, theme))
        traces.extend(_missing(view, series, row, theme))
    traces.extend([*_skips(view, theme), *_alerts(view, theme)])
    layout = _layout(view, theme, height)
    if chosen is not None and chosen != view.incident:
        line = {"color": style.PALETTES[theme].ink, "width": 1, "dash": "dot"}
        layout["shapes"].append(_vertical(chosen, line))
    return {"data": traces, "layout": layout}


def _vertical(step: int, line: dict[str, Any]) -> dict[str, Any]:
    ends = {"x0": step, "x1": step, "y0": 0, "y1": 1}
    return {"type": "line", "xref": "x", "yref": "paper", **ends, "line": line, "layer": "below"}


def _axis_name(row: int) -> str:
    return "y" if row == 0 else f"y{row + 1}"


def _line(view: TimelineView, series: Series, row: int, theme: style.Theme) -> Trace:
    few = len(view.steps) <= 60
    good = [math.isfinite(value) for value in series.values]
    shown = zip(series.values, good, strict=True)
    return {
        "type": "scatter",
        "name": WORDS[series.name],
        "x": list(view.steps),
        "y": [float(value) if finite else None for value, finite in shown],
        "yaxis": _axis_name(row),
        "mode": "lines+markers" if few else "lines",
        "line": {
            "color": style.PALETTES[theme].finite,
            "width": 1.6,
            "shape": "hv" if series.name == "scale" else "linear",
        },
        "marker": {"size": 4, "color": style.PALETTES[theme].finite},
        "hovertext": [
            f"step {number(step)}<br>{WORDS[series.name]} {_written(series, i)}"
            for i, step in enumerate(view.steps)
        ],
        "hoverinfo": "text",
    }


def _written(series: Series, record: int) -> str:
    kind = series.kinds[record]
    if kind == "missing":
        return "not recorded"
    return KIND_WORDS.get(kind) or number(float(series.values[record]))


def _marks(view: TimelineView, series: Series, row: int, theme: style.Theme) -> list[Trace]:
    colour = style.PALETTES[theme].nonfinite
    traces = []
    for kind in KINDS:
        records = [record for record, found in series.marks if found == kind]
        if not records:
            continue
        traces.append(
            {
                "type": "scatter",
                "name": f"{WORDS[series.name]} {KIND_WORDS[kind]}",
                "x": [view.steps[record] for record in records],
                "y": [mark_height(series)] * len(records),
                "yaxis": _axis_name(row),
                "mode": "markers",
                "marker": {
                    "symbol": style.SYMBOLS[kind],
                    "size": 9,
                    "color": colour,
                    "line": {"width": 2.5 if kind == "nan" else 1, "color": colour},
                },
                "hovertext": [
                    f"step {number(view.steps[record])}<br>"
                    f"{WORDS[series.name]} is {KIND_WORDS[kind]}"
                    for record in records
                ],
                "hoverinfo": "text",
                "cliponaxis": False,
            }
        )
    return traces


def _missing(view: TimelineView, series: Series, row: int, theme: style.Theme) -> list[Trace]:
    if not series.missing:
        return []
    skips = dict(view.skips)
    colour = style.PALETTES[theme].muted
    return [
        {
            "type": "scatter",
            "name": f"{WORDS[series.name]} not recorded",
            "x": [view.steps[record] for record in series.missing],
            "y": [mark_height(series)] * len(series.missing),
            "yaxis": _axis_name(row),
            "mode": "markers",
            "marker": {
                "symbol": "line-ew-open",
                "size": 7,
                "color": colour,
                "line": {"width": 1.5, "color": colour},
            },
            "hovertext": [
                f"step {number(view.steps[record])}<br>{WORDS[series.name]} not recorded"
                + (f"<br>{skip_words(skips[record])}" if record in skips else "")
                for record in series.missing
            ],
            "hoverinfo": "text",
            "cliponaxis": False,
        }
    ]


def mark_height(series: Series) -> float:
    """Where non-finite marks stand: near the top of the row, above every finite value."""
    return place_at(series, 0.88)


def place_at(series: Series, part: float) -> float:
    """The value at a part (0 bottom, 1 top) of the row's axis."""
    if series.log:
        low, high = math.log10(series.low), math.log10(series.high)
        return float(10 ** (low + part * (high - low)))
    return series.low + part * (series.high - series.low)


def _skips(view: TimelineView, theme: style.Theme) -> list[Trace]:
    if not view.skips:
        return []
    row = [series.name for series in view.series].index("scale")
    return [
        {
            "type": "scatter",
            "name": "withheld updates",
            "x": [view.steps[record] for record, _ in view.skips],
            "y": [place_at(view.series[row], 0.06)] * len(view.skips),
            "yaxis": _axis_name(row),
            "mode": "markers",
            "marker": {
                "symbol": "line-ns-open",
                "size": 10,
                "color": style.PALETTES[theme].diagnostic,
                "line": {"width": 1.5, "color": style.PALETTES[theme].diagnostic},
            },
            "hovertext": [
                f"step {number(view.steps[record])}<br>{skip_words(by)}"
                for record, by in view.skips
            ],
            "hoverinfo": "text",
            "cliponaxis": False,
        }
    ]


def _alerts(view: TimelineView, theme: style.Theme) -> list[Trace]:
    if not view.alerts:
        return []
    series = view.series[0]
    return [
        {
            "type": "scatter",
            "name": "alerts",
            "x": [view.steps[record] for record, _ in view.alerts],
            "y": [place_at(series, 0.97)] * len(view.alerts),
            "yaxis": _axis_name(0),
            "mode": "text",
            "text": ["<b>!</b>"] * len(view.alerts),
            "textfont": {"color": style.PALETTES[theme].ink, "size": 13},
            "hovertext": [
                f"step {number(view.steps[record])}<br>Alert: {plain(said)}"
                for record, said in view.alerts
            ],
            "hoverinfo": "text",
            "cliponaxis": False,
        }
    ]


def skip_words(by: str) -> str:
    """Why an update was withheld, in words."""
    return _SKIP_WORDS.get(by, f"update withheld: {by}")


def _layout(view: TimelineView, theme: style.Theme, height: int) -> dict[str, Any]:
    shared = style.layout(theme, height)
    colours = style.PALETTES[theme]
    first, last = view.steps[0], view.steps[-1]
    pad = max(0.5, (last - first) * 0.015)
    shared.update(
        margin={"l": 64, "r": 16, "t": 26, "b": 40},
        meta={"id": CHART_ID, "title": title(view)},
        xaxis=style.axis(
            theme,
            range=[first - pad, last + pad],
            title={"text": "step", "font": {"size": 12}},
            showgrid=False,
            tickformat=",d",
            anchor=_axis_name(len(view.series) - 1),
        ),
        shapes=[],
        annotations=[],
    )
    size = (1 + _GAP) / len(view.series)
    for row, series in enumerate(view.series):
        top = 1 - row * size
        shared[f"yaxis{row + 1 if row else ''}"] = _row_axis(series, top, size - _GAP, theme)
        shared["annotations"].append(_row_title(series, top, theme))
    if view.incident is not None:
        line = {"color": colours.nonfinite, "width": 1.2}
        shared["shapes"].append(_vertical(view.incident, line))
        shared["annotations"].append(
            {
                "text": f"incident, step {number(view.incident)}",
                "xref": "x",
                "x": view.incident,
                "xanchor": "right" if view.incident > (first + last) / 2 else "left",
                "yref": "paper",
                "y": 1,
                "yanchor": "bottom",
                "showarrow": False,
                "font": {"size": 11, "color": colours.nonfinite},
            }
        )
    return shared


def _row_axis(series: Series, top: float, size: float, theme: style.Theme) -> dict[str, Any]:
    span = [series.low, series.high]
    settings: dict[str, Any] = {
        "domain": [max(0.0, top - size), min(1.0, top)],
        "range": [math.log10(value) for value in span] if series.log else span,
        "nticks": 4,
        # 65,536 and 0.0003 read faster than powers; far from 1 they do not
        "exponentformat": "none" if _readable(series) else "power",
        "separatethousands": True,
        "anchor": "x",
    }
    if series.log:
        named = decades(series.low, series.high, 4, powers=not _readable(series))
        settings.update(type="log", **named)
    if not series.recorded:
        settings.update(showticklabels=False, showgrid=False)
    return style.axis(theme, **settings)


def _readable(series: Series) -> bool:
    size = max(abs(series.low), abs(series.high))
    return 1e-4 <= size < 1e7


def _row_title(series: Series, top: float, theme: style.Theme) -> dict[str, Any]:
    missing = "" if series.recorded else ": not recorded"
    return {
        "text": f"{WORDS[series.name]}{missing}",
        "xref": "paper",
        "x": 0,
        "xanchor": "left",
        "yref": "paper",
        "y": min(1.0, top),
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": 12, "color": style.PALETTES[theme].ink},
    }


def title(view: TimelineView) -> str:
    """One sentence that says what is shown, for captions and screen readers."""
    bad = [f"{WORDS[series.name]} {len(series.marks)}" for series in view.series if series.marks]
    skips = f"; {counted(len(view.skips), 'update')} withheld" if view.skips else ""
    found = f"values that are not finite: {', '.join(bad)}" if bad else "every value is finite"
    if view.alerts:
        skips += f"; {counted(len(view.alerts), 'step')} with an alert"
    return (
        f"Timeline from step {number(view.steps[0])} to {number(view.steps[-1])}: loss, gradient "
        f"norm, loss scale and learning rate; {found}{skips}."
    )


def table(
    ledger: Ledger,
    incident: int | None = None,
    before: int = STEPS_BEFORE,
    rank: int | None = None,
) -> Rows:
    """The same steps as rows, the incident's named in words."""
    view = timeline_view(ledger, incident, before, rank)
    skips, alerts = dict(view.skips), dict(view.alerts)
    rows = []
    for record, step in enumerate(view.steps):
        values = [_written(series, record) for series in view.series]
        notes = [] if step != incident else ["incident"]
        notes += [skip_words(skips[record])] if record in skips else []
        notes += [f"alert: {alerts[record]}"] if record in alerts else []
        rows.append((number(step), *values, "; ".join(notes)))
    headers = ("Step", *(WORDS[series.name].capitalize() for series in view.series), "Note")
    return Rows(title(view), headers, tuple(rows), (0, 1, 2, 3, 4))


def drawing(
    ledger: Ledger,
    incident: int | None = None,
    before: int = STEPS_BEFORE,
    rank: int | None = None,
) -> Drawing:
    """The same arrays as a small static picture."""
    from workbench.charts.timeline_drawing import draw

    view = timeline_view(ledger, incident, before, rank)
    return draw(view, title(view))
