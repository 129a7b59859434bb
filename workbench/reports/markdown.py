"""The text cells of templates: headings, paragraphs, lists, emphasis; everything escaped.

Deliberately small. A link out of the page would be an external address, and a report has none, so
only links within the page become links.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from markupsafe import Markup, escape

_HEADING = re.compile(r"(#{1,6})\s+(.*?)\s*#*\s*")
_BULLET = re.compile(r"[-*]\s+(.*)")
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]*)\)")
_STRONG = re.compile(r"\*\*(.+?)\*\*")
_EMPHASIS = re.compile(r"\*(.+?)\*")
_CODE = re.compile(r"`([^`]+)`")


def headings(source: str) -> list[tuple[int, str]]:
    """``(level, text)`` of every heading."""
    found = (_HEADING.fullmatch(line) for line in source.splitlines())
    return [(len(match[1]), match[2]) for match in found if match]


def to_html(source: str) -> Markup:
    """The text of a cell without its first two levels of headings, which the page sets itself."""
    return Markup("\n").join(_blocks(source.splitlines()))


def _blocks(lines: list[str]) -> Iterator[Markup]:
    paragraph: list[str] = []
    bullets: list[str] = []
    for line in [*lines, ""]:
        heading, bullet = _HEADING.fullmatch(line), _BULLET.fullmatch(line.strip())
        if paragraph and (heading or bullet or not line.strip()):
            yield Markup("<p>{}</p>").format(_inline(" ".join(paragraph)))
            paragraph = []
        if bullets and not bullet:
            items = Markup("").join(Markup("<li>{}</li>").format(_inline(b)) for b in bullets)
            yield Markup("<ul>{}</ul>").format(items)
            bullets = []
        if bullet:
            bullets.append(bullet[1])
        elif heading and len(heading[1]) > 2:
            yield Markup("<h3>{}</h3>").format(_inline(heading[2]))
        elif not heading and line.strip():
            paragraph.append(line.strip())


def _inline(text: str) -> Markup:
    """Escape first, then put the few marks in."""
    out = str(escape(text))
    out = _CODE.sub(r"<code>\1</code>", out)
    out = _STRONG.sub(r"<strong>\1</strong>", out)
    out = _EMPHASIS.sub(r"<em>\1</em>", out)
    out = _LINK.sub(_link, out)
    return Markup(out)  # noqa: S704 - escaped above; only the marks of this module were added


def _link(match: re.Match[str]) -> str:
    text, target = match[1], match[2]
    return f'<a href="{target}">{text}</a>' if target.startswith("#") else text
