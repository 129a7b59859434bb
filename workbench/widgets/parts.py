"""Small ipywidgets pieces that every region uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ipywidgets as w
from ipywidgets.widgets.widget_string import HTMLStyle

from workbench.widgets.markup import esc, link
from workbench.widgets.state import Problem

NARROW, WIDE = 1100, 1700
"""Widths in pixels below and from which the panel is laid out otherwise; the same in shell.js."""

WIDE_COLUMN = 360
MARGINS = 28

Act = Callable[[str], None]
"""Asks the panel to do something by one action name, such as ``step`` or ``run_to:loss``."""


_shared: dict[tuple[Any, ...], Any] = {}


def shared(kind: type[w.Widget], **settings: Any) -> Any:
    """One layout or style for all that have the same settings; it is never changed.

    Each is a message to the page and a model there, and a panel would open with a hundred of them.
    """
    key = (kind, *sorted(settings.items()))
    made = _shared.get(key)
    if made is None or made.comm is None:  # closed together with everything else
        made = _shared[key] = kind(**settings)
    return made


def button(
    label: str, on_click: Callable[..., None], *, title: str = "", classes: Sequence[str] = ()
) -> w.Button:
    """A text button with a tooltip."""
    made = w.Button(
        description=label,
        tooltip=title or label,
        layout=shared(w.Layout, width="auto"),
        style=shared(w.ButtonStyle),
        _dom_classes=("wb-button", *classes),
    )
    made.on_click(on_click)
    return made


def html(text: str = "", *classes: str) -> w.HTML:
    """An HTML region. ``text`` must be made by `markup` from escaped pieces."""
    style, layout = shared(HTMLStyle), shared(w.Layout)
    return w.HTML(value=text, layout=layout, style=style, _dom_classes=classes)


def row(children: Sequence[Any], *classes: str) -> w.HBox:
    """Pieces side by side."""
    return w.HBox(list(children), layout=shared(w.Layout), _dom_classes=classes)


def column(children: Sequence[Any], *classes: str) -> w.VBox:
    """Pieces under one another."""
    return w.VBox(list(children), layout=shared(w.Layout), _dom_classes=classes)


def set_class(widget: Any, name: str, on: bool) -> None:
    """Give or take a class."""
    set_classes(widget, {name: on})


def set_classes(widget: Any, wanted: Mapping[str, bool]) -> None:
    """Give and take classes, in one message to the page; none when nothing changes."""
    kept = [one for one in widget._dom_classes if wanted.get(one, True)]
    now = (*kept, *(name for name, on in wanted.items() if on and name not in kept))
    if now != tuple(widget._dom_classes):
        widget._dom_classes = now


def show(widget: Any, on: bool) -> None:
    """Show or hide a widget without removing it."""
    set_display(widget, None if on else "none")


def set_display(widget: Any, display: str | None) -> None:
    """Set a widget's ``display``; a layout that others have too is changed for another one."""
    layout = widget.layout
    if layout.display == display:
        return
    mine = [settings for (_, *settings), one in _shared.items() if one is layout]
    if mine:
        widget.layout = shared(w.Layout, **{**dict(mine[0]), "display": display})
    else:
        layout.display = display


def problem(what: Problem | None) -> str:
    """A problem in words, with its one next step and, for a bug of ours, its trace to copy."""
    if what is None:
        return ""
    step = f" {link(what.action, what.label)}" if what.action else ""
    trace = ""
    if what.trace:
        # the whole trace is what a report of a bug needs; a name in it is text like any other
        step = f" {link('copy_details', 'Copy details')}"
        trace = f"<details><summary>Details</summary><pre>{esc(what.trace)}</pre></details>"
    return f'<div class="wb-problem" role="alert">{esc(what.text)}{step}{trace}</div>'


def content_width(panel: int) -> int:
    """Width that a tab's content has in a panel of this width, in pixels."""
    return max(panel - MARGINS - (WIDE_COLUMN if panel >= WIDE else 0), 320)


def close(widget: Any) -> None:
    """Take a widget and everything in it out of the page."""
    for child in getattr(widget, "children", ()):
        close(child)
    widget.close()
