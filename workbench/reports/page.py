"""An executed notebook to one HTML page that opens anywhere, offline."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from workbench import __version__
from workbench.charts import style
from workbench.errors import UsageError
from workbench.evidence.scrub import scrub, scrub_tree
from workbench.numerics import jsonio
from workbench.reports.blocks import FINDINGS, MIMETYPE, PLOTLY
from workbench.reports.markdown import headings, to_html
from workbench.reports.render import environment, part, policy, render_blocks

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]*")
_SLUG = re.compile(r"[^a-z0-9]+")
_MAX_OUTPUT = 20_000


@dataclass
class About:
    """How a page was made; all but ``made`` is equal for two runs of the same input.

    Attributes:
        rows: ``(name, value)`` for readers.
        data: The same for programs.
        made: The one line that differs from run to run.
    """

    rows: list[tuple[str, str]] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    made: str = ""


@dataclass
class _Page:
    items: list[dict[str, Any]] = field(default_factory=list)
    charts: list[dict[str, Any]] = field(default_factory=list)
    contents: list[dict[str, Any]] = field(default_factory=list)
    findings: str = ""
    title: str = ""
    has_contents: bool = False
    names: set[str] = field(default_factory=set)


def write_page(notebook: Mapping[str, Any], about: About | None = None) -> str:
    """Write the page of an executed notebook.

    Args:
        notebook: The notebook (nbformat 4). Cells that did not run are named as such.
        about: How it was made; taken from the notebook's metadata when None.

    Returns:
        HTML without any external address.
    """
    about = _scrubbed(about or _about_of(notebook))
    page = _Page()
    cells = [cell for cell in notebook["cells"] if _is_shown(cell)]
    page.contents = _contents(cells)
    setup = _fill(page, cells)
    for cell, printed in setup:
        page.items += [*printed, _code_item(page, cell)]
    failed = _failure(notebook)
    return str(
        environment()
        .get_template("page.html.j2")
        .render(
            version=__version__,
            title=page.title or f"Report of {about.data.get('bundle', {}).get('name', 'a bundle')}",
            has_title=bool(page.title),
            # where no section has a place for it, the list comes first
            contents=[] if page.has_contents else page.contents,
            recorded=failed.get("recorded", []),
            policy=policy(_programs() if page.charts else ()),
            style=part("style.css"),
            script=part("page.js"),
            banner=failed.get("text", ""),
            banner_anchor=failed.get("anchor", ""),
            items=page.items,
            # the rows too: a reader's program can compare them with what stands on the page
            about={**about.data, "rows": [list(row) for row in about.rows]},
            about_rows=about.rows,
            made=about.made,
            findings=page.findings,
            charts=page.charts,
            swaps=style.swaps(),
            plotly=packed_plotly() if page.charts else "",
            plotly_version=plotly_version() if page.charts else "",
        )
    )


@cache
def _programs() -> tuple[str, str]:
    """The digests of the drawing script and of plotly.js, as a policy writes them."""
    texts = (str(part("page.js")), _plotly())
    digests = (hashlib.sha256(text.encode()).digest() for text in texts)
    first, second = (f"sha256-{base64.b64encode(digest).decode()}" for digest in digests)
    return first, second


@cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


@cache
def packed_plotly() -> str:
    """The installed plotly.js, gzipped and in base64: the same bytes for the same version."""
    packed = gzip.compress(_plotly().encode("utf-8"), compresslevel=9, mtime=0)
    return base64.b64encode(packed).decode("ascii")


def plotly_version() -> str:
    """Version of the installed plotly.js."""
    from plotly.offline import get_plotlyjs_version

    return str(get_plotlyjs_version())


def _about_of(notebook: Mapping[str, Any]) -> About:
    data = notebook.get("metadata", {}).get("workbench", {}).get("about", {})
    return About([(str(k), str(v)) for k, v in data.get("rows", [])], data.get("data", {}))


def _scrubbed(about: About) -> About:
    rows = [(name, scrub(value)) for name, value in about.rows]
    return About(rows, scrub_tree(about.data), about.made)


def _failure(notebook: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = notebook.get("metadata", {}).get("workbench", {}).get("failure", {})
    return dict(scrub_tree(found))


def _is_shown(cell: Mapping[str, Any]) -> bool:
    tags = cell.get("metadata", {}).get("tags", [])
    # papermill's copy of the parameters: they are listed at the end, without folders
    return "injected-parameters" not in tags and "papermill-error-cell-tag" not in tags


def state_of(cell: Mapping[str, Any]) -> str:
    """``completed``, ``failed``, ``not run`` or empty where nothing is known."""
    return str(cell.get("metadata", {}).get("workbench", {}).get("state", ""))


def _contents(cells: list[Any]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for index, cell in enumerate(cells):
        if cell["cell_type"] != "markdown":
            continue
        body = []
        for after in cells[index + 1 :]:
            if after["cell_type"] == "markdown":
                break
            body.append(after)
        ran = all(state_of(cell) != "not run" for cell in body)
        entries += [
            {"text": text, "anchor": slug(text), "ran": ran}
            for level, text in headings(_text(cell["source"]))
            if level == 2
        ]
    return entries


def slug(text: str) -> str:
    """An anchor from a heading."""
    return _SLUG.sub("-", text.lower()).strip("-") or "section"


def _is_setup(shown: list[dict[str, Any]], titled: bool) -> bool:
    """Whether a cell before the first section is no part of it: nothing shown, or just printed."""
    return not shown or (titled and all(item["kind"] == "output" for item in shown))


def _has_title(cells: list[Any]) -> bool:
    """Whether the notebook has a first screen of ours, which nothing may stand before."""
    outputs = (output for cell in cells for output in cell.get("outputs", []))
    sections = (output.get("data", {}).get(MIMETYPE) for output in outputs)
    return any(
        block.get("type") == "title" for found in sections if found for block in found["blocks"]
    )


def _fill(page: _Page, cells: list[Any]) -> list[tuple[Any, list[dict[str, Any]]]]:
    """Write all cells; returns the set-up cells, with what they printed: they go to the end."""
    titled = _has_title(cells)
    setup: list[tuple[Any, list[dict[str, Any]]]] = []
    opened = False
    for cell in cells:
        if cell["cell_type"] == "markdown":
            if opened:
                page.items.append({"kind": "end"})
            opened = _open_section(page, _text(cell["source"]))
        elif cell["cell_type"] == "code":
            shown = list(_outputs(page, cell))
            if not opened and state_of(cell) in ("completed", "") and _is_setup(shown, titled):
                setup.append((cell, shown))
                continue
            if not opened:
                page.items.append({"kind": "section", "anchor": "summary", "heading": ""})
                opened = True
            page.items += shown
            if state_of(cell) == "not run":
                page.items.append({"kind": "notrun"})
            if _text(cell["source"]).strip():
                page.items.append(_code_item(page, cell))
    if opened:
        page.items.append({"kind": "end"})
    return setup


def _open_section(page: _Page, source: str) -> bool:
    found = headings(source)
    heading = next((text for level, text in found if level == 2), "")
    if not heading:
        # the notebook's own title and notes for its readers; the page has its own
        return False
    anchor = _unique(page, slug(heading))
    page.items.append({"kind": "section", "anchor": anchor, "heading": heading})
    page.items.append({"kind": "html", "html": to_html(source)})
    return True


def _unique(page: _Page, name: str) -> str:
    number = 1
    unique = name
    while unique in page.names:
        number += 1
        unique = f"{name}-{number}"
    page.names.add(unique)
    return unique


def _code_item(page: _Page, cell: Mapping[str, Any]) -> dict[str, Any]:
    name = str(cell.get("metadata", {}).get("name") or "")
    return {
        "kind": "code",
        "anchor": _unique(page, f"cell-{slug(name)}") if name else "",
        "name": name,
        "state": state_of(cell),
        "source": scrub(_text(cell["source"])),
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "".join(value)


def _outputs(page: _Page, cell: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for output in cell.get("outputs", []):
        kind = output["output_type"]
        if kind == "stream":
            tone = "error" if output.get("name") == "stderr" else ""
            yield _plain(_text(output["text"]), tone)
        elif kind == "error":
            trace = "\n".join(output.get("traceback") or []) or _text(output.get("evalue", ""))
            yield _plain(trace, "error")
        else:
            yield from _data(page, output.get("data", {}))


def _plain(text: str, tone: str = "") -> dict[str, Any]:
    clean = scrub(_ANSI.sub("", text))
    if len(clean) > _MAX_OUTPUT:
        clean = f"{clean[:_MAX_OUTPUT]}\n… {len(clean) - _MAX_OUTPUT:,} characters cut"
    return {"kind": "output", "text": clean, "tone": tone}


def _data(page: _Page, data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One output: our own sections as data; of anything else only what cannot run."""
    if FINDINGS in data:
        page.findings = jsonio.dumps(scrub_tree(jsonio.loads(_text(data[FINDINGS]["text"]))))
    elif MIMETYPE in data:
        yield {"kind": "html", "html": _section(page, data[MIMETYPE])}
    elif PLOTLY in data:
        yield {"kind": "html", "html": _foreign_chart(page, data[PLOTLY])}
    elif "image/png" in data and _BASE64.fullmatch(_text(data["image/png"])):
        encoded = "".join(_text(data["image/png"]).split())
        alt = scrub(_text(data.get("text/plain", ""))) or "An image without description"
        yield {"kind": "image", "source": f"data:image/png;base64,{encoded}", "alt": alt}
    elif "text/plain" in data:
        yield _plain(_text(data["text/plain"]))


def _section(page: _Page, section: Mapping[str, Any]) -> Any:
    blocks = [dict(block) for block in scrub_tree(section["blocks"])]
    for block in blocks:
        if block["type"] == "chart":
            _add_chart(page, block)
        elif block["type"] == "title" and not page.title:
            page.title = str(block["text"])
        elif block["type"] == "contents":
            page.has_contents = True
    return render_blocks(blocks, page.contents)


def _add_chart(page: _Page, block: dict[str, Any]) -> None:
    block["id"] = _unique(page, f"chart-{slug(str(block['id']))}")
    page.charts.append({"id": block["id"], "figure": block["figure"]})


def _foreign_chart(page: _Page, figure: Mapping[str, Any]) -> Any:
    """A plotly figure of a template of the user's own: drawn by the script, named without it."""
    from workbench.charts.drawing import Drawing

    if not isinstance(figure.get("data"), list):
        raise UsageError(
            f"A chart of the notebook has no list of traces (found {type(figure.get('data'))!r}), "
            "so it cannot be drawn. Display a plotly Figure as it is."
        )
    drawing = Drawing(960, 40, "A chart that needs scripts")
    drawing.text(8, 24, "This chart needs scripts to be drawn.", "wb-tick")
    figure = scrub_tree(figure)
    block = {
        "type": "chart",
        "id": "figure",
        "caption": "",
        "figure": {**figure, "config": style.CONFIG},
        "drawing": drawing.as_dict(),
        "table": {
            "caption": "Traces of this chart.",
            "headers": ["Trace", "Kind"],
            "rows": [
                [str(trace.get("name") or index), str(trace.get("type") or "scatter")]
                for index, trace in enumerate(figure["data"])
            ],
            "numeric": [],
        },
    }
    _add_chart(page, block)
    return render_blocks([block])
