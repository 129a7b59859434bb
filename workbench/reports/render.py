"""Blocks to HTML. The only module that marks text as safe; everything else is escaped by jinja."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from workbench.charts.drawing import Drawing
from workbench.evidence.wording import visible
from workbench.numerics import jsonio
from workbench.reports.markdown import to_html
from workbench.reports.templates import template_root

_PARTS = "page"
_BACKTICKS = re.compile(r"`([^`]+)`")


@cache
def environment() -> Environment:
    """The jinja environment of the page parts: autoescape on, undefined names are errors."""
    found = Environment(
        loader=FileSystemLoader(template_root() / _PARTS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
        finalize=_finalize,
    )
    found.globals["draw"] = _draw
    found.filters["coded"] = _coded
    found.filters["marked"] = _marked
    found.filters["relative"] = _relative
    found.globals["script_json"] = script_json
    return found


def _finalize(value: Any) -> Any:
    """Every text on the page, before it is escaped; markup is this package's own."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _draw(data: Any) -> Markup:
    # Markup of allow-listed elements whose texts and attributes are escaped by Drawing itself.
    return Markup(Drawing.from_dict(data).markup())  # noqa: S704


def _coded(text: Any) -> Markup:
    """Escape a sentence and set what stands between backticks, a command or a name, as code."""
    # escaped first; the only markup that is added is this module's own
    return Markup(_BACKTICKS.sub(r"<code>\1</code>", str(escape(visible(str(text))))))  # noqa: S704


def _marked(text: Any) -> Markup:
    """Somebody's own text with the few marks that a page knows; all else is escaped."""
    return to_html(visible(str(text)))


def _relative(name: Any) -> str:
    """The address of a file beside the page: no scheme and no folder can come out of it."""
    return quote(str(name), safe="")


def script_json(value: Any) -> Markup:
    """JSON for a ``<script type="application/json">``: no ``<`` can end the element."""
    text = value if isinstance(value, str) else jsonio.dumps(value)
    return Markup(text.replace("<", "\\u003c"))  # noqa: S704


def policy(programs: Sequence[str]) -> Markup:
    """The page's Content-Security-Policy: no address, and no program but those named.

    Args:
        programs: Digests of the page's own scripts, as ``sha256-…``.
    """
    allowed = " ".join(f"'{escape(one)}'" for one in programs) or "'none'"
    text = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return Markup(text)  # noqa: S704


def part(name: str) -> Markup:
    """A file of the package that goes into the page as it is: style sheet or script."""
    return Markup((template_root() / _PARTS / name).read_text(encoding="utf-8"))  # noqa: S704


def render_blocks(blocks: Sequence[dict[str, Any]], contents: Sequence[Any] = ()) -> Markup:
    """Write blocks as HTML.

    Args:
        blocks: Blocks as ``workbench.reports.blocks`` makes them.
        contents: Entries of the contents list, for a page.
    """
    module: Any = environment().get_template("blocks.html.j2").module
    return Markup("").join(module.block(one, list(contents)) for one in blocks)
