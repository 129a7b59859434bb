"""Reading back what a report carries."""

from __future__ import annotations

import os
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from workbench.errors import BundleError
from workbench.numerics import jsonio

FINDINGS_ID = "wb-findings"
RUN_ID = "wb-about"


class _ScriptText(HTMLParser):
    """Collects the text of data blocks by id."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self._inside: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "script" and values.get("type") == "application/json":
            self._inside = values.get("id") or ""
            self.found.setdefault(self._inside, "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside is not None:
            self.found[self._inside] += data


def extract_findings(html: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the findings a report carries.

    Args:
        html: Path of the report, or its text.

    Returns:
        A ``workbench.findings/1`` object.

    Raises:
        BundleError: The page is not a report, or carries no findings.
    """
    return _extract(html, FINDINGS_ID, "findings")


def extract_about(html: str | os.PathLike[str]) -> dict[str, Any]:
    """Read how a report was made: bundle and template digests, parameters, versions.

    Raises:
        BundleError: The page is not a report.
    """
    return _extract(html, RUN_ID, "record of how it was made")


def _extract(html: str | os.PathLike[str], element: str, what: str) -> dict[str, Any]:
    is_text = isinstance(html, str) and html.lstrip()[:1] == "<"
    name = "the given text" if is_text else str(html)
    try:
        text = str(html) if is_text else Path(html).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(
            f"The report {name!r} cannot be read ({error}), so nothing in it was checked. "
            "Give the path of an HTML file that workbench report wrote."
        ) from error
    parser = _ScriptText()
    parser.feed(text)
    value = jsonio.loads(parser.found[element]) if element in parser.found else None
    if not isinstance(value, dict):
        raise BundleError(
            f"The page {name!r} carries no {what}, so nothing in it can be checked. "
            "Give an HTML file that workbench report wrote, as it was written."
        )
    return value
