"""Texts without the folders, the user and the host they came from: what is shared tells nothing.

File names stay, since a source line without one says nothing; what stands before them goes.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

# A path in quotes may hold blanks: File "/home/me/My Project/train.py"
_QUOTED: Final = re.compile(
    r"""(['"])(?:~|file://|[A-Za-z]:)?[/\\][^'"\n]{0,2000}[/\\]([^'"/\\\n]+)[/\\]?\1"""
)
_POSIX: Final = re.compile(r"(?<![\w/.+-])(?:file://)?~?/(?:[\w.@+~%-]{1,255}/)+(?=[\w.@+~%-])")
_WINDOWS: Final = re.compile(r"(?<![\w])(?:[A-Za-z]:|\\)\\(?:[^\\/\s:\"'<>|]{1,255}\\)+")
_HOME: Final = re.compile(r"(?<![\w/.+-])/(?:home|Users)/[\w.@+~%-]+/?(?![\w.@+~%/-])")
# Numbers of a chart travel in base64, in which a slash is a digit.
_ENCODED: Final = frozenset({"bdata", "base64"})
_SHORTEST_HOST: Final = 4


def scrub(text: str) -> str:
    """The text with every absolute path cut down to its file name and this host's name left out."""
    if "/" in text or "\\" in text:
        text = _HOME.sub("~", text)
        text = _QUOTED.sub(r"\1\2\1", text)
        text = _POSIX.sub("", text)
        text = _WINDOWS.sub("", text)
    host = _host()
    return host.sub("[host]", text) if host is not None else text


def scrub_tree(tree: Any) -> Any:
    """The same for every text, keys included, of plain JSON values."""
    if isinstance(tree, str):
        return scrub(tree)
    if isinstance(tree, Mapping):
        return {
            scrub(key) if isinstance(key, str) else key: (
                value if key in _ENCODED else scrub_tree(value)
            )
            for key, value in tree.items()
        }
    if isinstance(tree, list | tuple):
        return [scrub_tree(item) for item in tree]
    return tree


@cache
def _host() -> re.Pattern[str] | None:
    name = socket.gethostname().partition(".")[0]
    if len(name) < _SHORTEST_HOST or name.lower().startswith("localhost"):
        return None
    return re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])(?:\.[\w.-]+)?")
