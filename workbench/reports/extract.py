"""Reading back what a report carries, and what it shows.

A page may have been edited by anyone. It is read as text within bounds, never run, and whatever
could be meant in two ways is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

from workbench.errors import BundleError, UsageError
from workbench.evidence.wording import clean
from workbench.numerics import jsonio

FINDINGS_ID = "wb-findings"
RUN_ID = "wb-about"
PLOTLY_ID = "wb-plotly"
CHART: Final = "chart"
MAX_PAGE_BYTES: Final = 64 << 20
# A page of 200 layers has under 3 MB beside the drawing program.
MAX_TEXT_CHARACTERS: Final = 24 << 20
_PROGRAM: Final = re.compile(
    r'(<script type="text/plain" id="wb-plotly">)([A-Za-z0-9+/=\s]*)(?=</script>)'
)
_UNFINISHED: Final = re.compile(r"<(?:!--|!\[|\?)")
_MOST_UNFINISHED: Final = 1000
_BLOCKS: Final = frozenset(
    "p li h1 h2 h3 h4 h5 h6 pre figcaption caption summary div section figure header footer nav "
    "main dl ul ol table thead tbody details title".split()
)
_CELLS: Final = frozenset(("td", "th", "dt", "dd"))
_ROWS: Final = frozenset(("tr",))
_SHOWN_ATTRIBUTES: Final = ("alt", "aria-label", "title", "placeholder", "value", "content")


@dataclass(frozen=True)
class Statement:
    """One text a reader sees.

    Attributes:
        section: Anchor of the section it stands in, ``about`` for the end of the page.
        place: What it is: a tag's name, ``row`` or ``drawing``; ``chart …`` inside of a figure.
        text: The text; the cells of a row are set apart by `` | ``.
    """

    section: str
    place: str
    text: str

    @property
    def key(self) -> str:
        """The row's name, or the place where there is none."""
        name, bar, _ = self.text.partition(" | ")
        return name if bar else self.place


@dataclass
class Page:
    """A report taken apart.

    Attributes:
        name: The file's name.
        findings: The findings it carries, or None.
        about: How it was made.
        charts: The figures it carries, by id of their place.
        statements: Everything a reader sees, in order.
        programs: Style sheets and scripts, with the packed drawing program.
        length: Characters of its text.
    """

    name: str
    findings: dict[str, Any] | None = None
    about: dict[str, Any] = field(default_factory=dict)
    charts: dict[str, Any] = field(default_factory=dict)
    statements: list[Statement] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)
    length: int = 0


class _Reader(HTMLParser):
    """Collects data blocks by id, programs, and what is shown."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.data: dict[str, str] = {}
        self.programs: list[str] = []
        self.statements: list[Statement] = []
        self._section = "top"
        self._place = ""
        self._text: list[str] = []
        self._cells: list[str] = []
        self._script: list[str] | None = None
        self._script_id = ""
        self._drawing = 0
        self._figures = 0

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        """Read ``<![…`` as browsers do: a comment; the parser's own way ends in an assertion."""
        return self.parse_bogus_comment(i, report)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag in ("script", "style"):
            self._begin_program(values)
        elif tag == "svg":
            self._flush("drawing")
            self._drawing += 1
        elif not self._drawing and tag in _BLOCKS | _CELLS | _ROWS:
            self._flush(tag)
        self._figures += tag == "figure"
        if tag in ("section", "footer"):
            self._section = values.get("id") or ("about" if tag == "footer" else "unnamed")
        if tag != "svg" and not (tag == "meta" and "name" in values):
            shown = [values[name] for name in _SHOWN_ATTRIBUTES if values.get(name)]
            self._text += [f"[{text}] " for text in shown]
        programs = [f"{n}={v}" for n, v in values.items() if n.startswith("on") or n == "style"]
        # where the browser would go, and what it would run, is part of what a page says
        programs += [f"{n}={v}" for n, v in values.items() if n in ("href", "src", "srcdoc")]
        self.programs += [f"{tag} {text}" for text in programs]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag == "svg":
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style") and self._script is not None:
            text, self._script = "".join(self._script), None
            if self._script_id:
                self._add_data(self._script_id, text)
            else:
                self.programs.append(text)
        elif tag == "svg" and self._drawing:
            self._drawing -= 1
            self._flush("")
        elif not self._drawing and tag in _BLOCKS | _CELLS | _ROWS:
            self._flush("")
            if tag not in _CELLS:
                self._end_row()
        if tag == "section":
            self._section = "top"
        elif tag == "figure":
            self._figures = max(0, self._figures - 1)

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self._script.append(data)
        else:
            self._text.append(f"{data} " if self._drawing else data)

    def close(self) -> None:
        super().close()
        self._flush("")
        self._end_row()

    def _begin_program(self, values: dict[str, str]) -> None:
        self._flush("")
        self._script = []
        is_data = values.get("type") in ("application/json", "text/plain")
        self._script_id = values.get("id", "") if is_data else ""

    def _add_data(self, name: str, text: str) -> None:
        if name in self.data:
            raise BundleError(
                f"The page holds the data block {clean(name, 80)!r} twice, so it cannot be told "
                "which one it means, and nothing of it was used. Give the report as it was written."
            )
        self.data[name] = text

    def _flush(self, place: str) -> None:
        """End the text so far; a row ends with the next block that is no cell."""
        text = " ".join("".join(self._text).split())
        self._text = []
        in_row = self._place in _CELLS
        if text and in_row:
            self._cells.append(text)
        elif text:
            self._say(self._place or "text", text)
        if place not in _CELLS and place != "":
            self._end_row()
        if place or not in_row:
            self._place = place

    def _end_row(self) -> None:
        cells, self._cells = self._cells, []
        if cells:
            self._say("row", " | ".join(cells))

    def _say(self, place: str, text: str) -> None:
        place = f"{CHART} {place}" if self._figures else place
        self.statements.append(Statement(self._section, place, text))


def read_page(html: str | os.PathLike[str]) -> Page:
    """Take a report apart.

    Args:
        html: Path of the report, or its text.

    Raises:
        BundleError: The page is not a report, is too large, or says one thing twice.
    """
    name, text = _text_of(html)
    text, packed = _without_program(text, name)
    reader = _Reader()
    reader.feed(text)
    reader.close()
    about = _value(reader.data, RUN_ID, name)
    if about is None:
        raise _nothing(name, "record of how it was made")
    page = Page(name, _value(reader.data, FINDINGS_ID, name), about, length=len(text))
    page.statements = reader.statements
    page.programs = [*reader.programs, packed]
    for key in sorted(reader.data):
        if key.endswith("-data"):
            page.charts[key.removesuffix("-data")] = _value(reader.data, key, name)
        elif key not in (FINDINGS_ID, RUN_ID):
            page.programs.append(f"{key}: {reader.data[key]}")
    return page


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
    name, text = _text_of(html)
    text, _ = _without_program(text, name)
    reader = _Reader()
    reader.feed(text)
    found = _value(reader.data, element, name)
    if found is None:
        raise _nothing(name, what)
    return found


def _text_of(html: str | os.PathLike[str]) -> tuple[str, str]:
    if isinstance(html, str) and html.lstrip()[:1] == "<":
        return "the given text", html
    path = Path(html)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_PAGE_BYTES + 1)
        if len(data) <= MAX_PAGE_BYTES:
            return str(path), data.decode("utf-8")
    except FileNotFoundError as error:
        raise UsageError(
            f"There is no report {str(html)!r}, so nothing was read. Look for a slip in the path; "
            "`workbench report` makes one."
        ) from error
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise BundleError(
            f"The report {str(html)!r} cannot be read ({error}), so nothing in it was checked. "
            "Give the path of an HTML file that workbench report wrote."
        ) from error
    raise BundleError(
        f"The report {str(html)!r} has more than {MAX_PAGE_BYTES >> 20} MiB, and no report has, "
        "so it was not read. Give an HTML file that workbench report wrote, as it was written."
    )


def _without_program(text: str, name: str) -> tuple[str, str]:
    """The page without the packed drawing program, which is most of it; and that program."""
    match = _PROGRAM.search(text)
    packed = ""
    if match is not None:
        packed = match[2]
        text = text[: match.start(2)] + text[match.end(2) :]
    # Each of these makes the parser look through the rest of the page for an end.
    unfinished = sum(1 for _ in _UNFINISHED.finditer(text))
    if len(text) > MAX_TEXT_CHARACTERS or unfinished > _MOST_UNFINISHED:
        raise BundleError(
            f"The page {name!r} is not as workbench report writes pages ({len(text)} characters of "
            f"text, {unfinished} comments), so it was not read. Give the report as it was written."
        )
    return text, packed


def _value(data: Mapping[str, str], element: str, name: str) -> dict[str, Any] | None:
    if element not in data:
        return None
    value = jsonio.loads(data[element])
    if not isinstance(value, dict):
        raise _nothing(name, f"object in its data block {element!r}")
    return value


def _nothing(name: str, what: str) -> BundleError:
    return BundleError(
        f"The page {name!r} carries no {what}, so nothing in it can be checked. "
        "Give an HTML file that workbench report wrote, as it was written."
    )
