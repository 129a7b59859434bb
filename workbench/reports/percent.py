"""Percent scripts to notebooks: a Python file whose cells start with ``# %%``.

It is what people edit and review; the notebook is what papermill runs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from workbench.errors import UsageError
from workbench.numerics import jsonio

_START = re.compile(
    r"# %%(?: \[(?P<kind>markdown)\])?(?: (?P<name>[a-z0-9-]+))?(?P<tags>(?: tags=\[.*\])?)"
    r'(?: doing="(?P<doing>[^"]+)")?'
)
_TAGS = re.compile(r'tags=\["([a-z-]+)"\]')


def build(script: Path) -> str:
    """The notebook of a percent script, as JSON text: the same script gives the same bytes.

    Raises:
        UsageError: A cell's first line cannot be read.
    """
    cells = [_cell(index, *found) for index, found in enumerate(_split(script))]
    notebook = {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return jsonio.dumps(notebook, indent=1) + "\n"


def _split(script: Path) -> list[tuple[str, list[str]]]:
    cells: list[tuple[str, list[str]]] = []
    for line in script.read_text(encoding="utf-8").splitlines():
        if line.startswith("# %%"):
            cells.append((line, []))
        elif cells:
            cells[-1][1].append(line)
    return cells


def _cell(index: int, first: str, lines: list[str]) -> dict[str, Any]:
    match = _START.fullmatch(first)
    if match is None:
        raise UsageError(
            f"The cell line {first!r} is not understood, so the notebook was not built. "
            'Write "# %% name" or "# %% [markdown]", then tags=["parameters"] if needed; '
            'doing="Reading the bundle" says what the cell does while it runs.'
        )
    name = match["name"] or f"cell-{index + 1}"
    source = "\n".join(lines).strip("\n")
    metadata: dict[str, Any] = {"tags": _TAGS.findall(match["tags"] or "")}
    if match["kind"]:
        text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in source.split("\n"))
        return {"cell_type": "markdown", "id": name, "metadata": metadata, "source": text}
    metadata["name"] = name
    if match["doing"]:
        metadata["doing"] = match["doing"]
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": name,
        "metadata": metadata,
        "outputs": [],
        "source": source,
    }
