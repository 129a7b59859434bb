"""Small ipywidgets pieces that every region uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets as w

from workbench.widgets.markup import esc, link
from workbench.widgets.state import Problem

NARROW, WIDE = 1100, 1700
"""Widths in pixels below and from which the panel is laid out otherwise; the same in shell.js."""

WIDE_COLUMN = 360
MARGINS = 28

Act = Callable[[str], None]
"""Asks the panel to do something by one action name, such as ``step`` or ``run_to:loss``."""


def button(
    label: str, on_click: Callable[..., None], *, title: str = "", classes: Sequence[str] = ()
) -> w.Button:
    """A text button with a tooltip."""
    made = w.Button(description=label, tooltip=title or label, layout=w.Layout(width="auto"))
    for name in ("wb-button", *classes):
        made.add_class(name)
    made.on_click(on_click)
    return made


def html(text: str = "", *classes: str) -> w.HTML:
    """An HTML region. ``text`` must be made by `markup` from escaped pieces."""
    made = w.HTML(value=text)
    for name in classes:
        made.add_class(name)
    return made


def row(children: Sequence[Any], *classes: str) -> w.HBox:
    """Pieces side by side."""
    made = w.HBox(list(children))
    for name in classes:
        made.add_class(name)
    return made


def column(children: Sequence[Any], *classes: str) -> w.VBox:
    """Pieces under one another."""
    made = w.VBox(list(children))
    for name in classes:
        made.add_class(name)
    return made


def set_class(widget: Any, name: str, on: bool) -> None:
    """Give or take a class."""
    if on:
        widget.add_class(name)
    else:
        widget.remove_class(name)


def show(widget: Any, on: bool) -> None:
    """Show or hide a widget without removing it."""
    display = None if on else "none"
    if widget.layout.display != display:
        widget.layout.display = display


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
