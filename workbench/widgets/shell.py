"""The anywidget shell: keys, theme, width, link clicks. It receives one checked action name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import anywidget
import traitlets

from workbench.widgets.script import HERE, Script, plotly_version, with_loader

ACTION = re.compile(r"([a-z_]{1,24})(?::([a-z_]{1,24}|[0-9]{1,7}))?")


class Shell(anywidget.AnyWidget):
    """Sits inside the panel's root and listens there.

    Attributes:
        dark: Whether the page's theme is dark.
        width: Width of the narrowest view of the panel in pixels.
    """

    _esm = with_loader("shell.js")
    _css = (HERE / "panel.css").read_text(encoding="utf-8")
    _plotly_version = traitlets.Unicode(plotly_version()).tag(sync=True)
    dark = traitlets.Bool(False).tag(sync=True)
    width = traitlets.Int(1220, min=200, max=8000).tag(sync=True)

    def __init__(self) -> None:
        super().__init__()
        self.on_msg(Script().answer)

    def listen(self, call: Callable[[str], None]) -> None:
        """Call with every well-formed action name the page sends; anything else is dropped."""

        def received(_widget: Any, content: Any, _buffers: Any) -> None:
            action = content.get("action") if isinstance(content, dict) else None
            if isinstance(action, str) and ACTION.fullmatch(action):
                call(action)

        self.on_msg(received)

    def focus(self, where: str) -> None:
        """Put the reader's focus into a field that `shell.js` knows by this name."""
        self.send({"focus": where})

    def copy(self, text: str) -> None:
        """Put a text on the reader's clipboard."""
        self.send({"copy": text})
