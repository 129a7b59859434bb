"""The anywidget shell: keys, theme, width, link clicks. It receives one checked action name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import traitlets

HERE = Path(__file__).parent
ACTION = re.compile(r"([a-z_]{1,24})(?::([a-z_]{1,24}|[0-9]{1,7}))?")


class Shell(anywidget.AnyWidget):
    """Sits inside the panel's root and listens there.

    Attributes:
        dark: Whether the page's theme is dark.
        width: Width of the narrowest view of the panel in pixels.
    """

    _esm = (HERE / "shell.js").read_text(encoding="utf-8")
    _css = (HERE / "panel.css").read_text(encoding="utf-8")
    dark = traitlets.Bool(False).tag(sync=True)
    width = traitlets.Int(1220, min=200, max=8000).tag(sync=True)

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
