"""Colours, glyphs and fonts: three meanings, each with a glyph and a word, for light and dark."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Theme = Literal["light", "dark"]


@dataclass(frozen=True)
class Palette:
    """The colours of one theme.

    ``finite`` is what was recorded or the original run, ``nonfinite`` what is NaN or infinite,
    ``diagnostic`` any run under changed conditions. A clean value has no colour of its own.
    """

    finite: str
    band: str
    nonfinite: str
    diagnostic: str
    muted: str
    grid: str
    ink: str
    paper: str


LIGHT = Palette(
    finite="#0b6e99",
    band="rgba(11,110,153,0.20)",
    nonfinite="#a8200d",
    diagnostic="#3f3f46",
    muted="#5f6368",
    grid="#e5e7eb",
    ink="#1b1b1f",
    paper="#ffffff",
)
DARK = Palette(
    finite="#6aaef0",
    band="rgba(106,174,240,0.24)",
    nonfinite="#ff7a59",
    diagnostic="#e4e4e7",
    muted="#9aa0a6",
    grid="#2a2d31",
    ink="#ececf0",
    paper="#111111",
)
PALETTES: dict[Theme, Palette] = {"light": LIGHT, "dark": DARK}

FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
CODE_FONT = "ui-monospace, 'SF Mono', 'DejaVu Sans Mono', monospace"
SIZES = (15, 13, 12)

# plotly's names of the shapes that look like the glyphs of words.GLYPHS.
SYMBOLS = {"nan": "x-thin-open", "pos_inf": "triangle-up", "neg_inf": "triangle-down"}


def swaps() -> dict[str, str]:
    """Map each light colour to its dark one, for a page that restyles a finished figure."""
    light, dark = asdict(LIGHT), asdict(DARK)
    return {light[name]: dark[name] for name in light}


def layout(theme: Theme, height: int) -> dict[str, Any]:
    """Layout settings every chart shares.

    Args:
        theme: Which palette the lines, grid and texts use.
        height: Height in pixels; the width follows the place the chart is put in.
    """
    colours = PALETTES[theme]
    return {
        # An empty template: plotly's own would add 7 kB and its colours to every chart.
        "template": {},
        "height": height,
        "autosize": True,
        # a figure alone in a notebook is read on its own ground, whatever the notebook's theme
        "paper_bgcolor": colours.paper,
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 12, "color": colours.ink},
        "hovermode": "closest",
        "modebar": {
            "bgcolor": colours.paper,
            "color": colours.muted,
            "activecolor": colours.ink,
        },
        "hoverlabel": {"align": "left", "font": {"family": FONT, "size": 12}},
        "showlegend": False,
        "dragmode": "zoom",
    }


def axis(theme: Theme, **settings: Any) -> dict[str, Any]:
    """Settings of one axis; ``settings`` win over the shared ones."""
    colours = PALETTES[theme]
    shared = {
        "gridcolor": colours.grid,
        "linecolor": colours.grid,
        "zeroline": False,
        "ticks": "",
        "tickfont": {"size": 11, "color": colours.muted},
    }
    return {**shared, **settings}


# Mode bar: zoom reset and PNG only.
CONFIG: dict[str, Any] = {
    "displaylogo": False,
    "responsive": True,
    "modeBarButtons": [["resetScale2d", "toImage"]],
}
