"""plotly's script for the page: which one it is, and the answer to a page that asks for it.

Known without importing plotly, which takes a second: the page reads the script meanwhile.
"""

from __future__ import annotations

import math
import time
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
AT_ONCE_S = 2.0
"""Questions that come within this time after an answer were asked before it."""


@cache
def plotly_version() -> str:
    """The version that is installed here."""
    return version("plotly")


def with_loader(name: str) -> str:
    """A widget's JavaScript file, with what loads plotly's script before it."""
    return "".join((HERE / one).read_text(encoding="utf-8") for one in ("plotly.js", name))


class Script:
    """What a widget answers its page.

    A page asks again while it waits for a busy kernel. Such questions come all at once, and one
    answer reaches every page.
    """

    def __init__(self) -> None:
        self._sent = -math.inf

    def answer(self, widget: Any, content: Any, _buffers: Any) -> None:
        """Send the script to a page that asked one of its widgets for it."""
        if not isinstance(content, dict) or content.get("ask") != "plotly":
            return
        now = time.monotonic()
        if now - self._sent > AT_ONCE_S:
            widget.send({"plotly": plotly_version()}, buffers=[script()])
            self._sent = now


def script() -> bytes:
    """The script, as plotly's package has it."""
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(name="plotly")  # it was there when the panel opened
    return (Path(spec.origin).parent / "package_data" / "widgetbundle.js").read_bytes()
