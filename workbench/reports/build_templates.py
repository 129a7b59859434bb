"""Build the template notebooks: ``python -m workbench.reports.build_templates``.

A percent script is a Python file whose cells start with ``# %%``. It is what people edit and
review; the notebook is what papermill runs. ``--check`` only says whether both agree.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from workbench.errors import CheckFailedError, UsageError
from workbench.numerics import jsonio
from workbench.reports.templates import template_root

_START = re.compile(
    r"# %%(?: \[(?P<kind>markdown)\])?(?: (?P<name>[a-z0-9-]+))?(?P<tags>(?: tags=\[.*\])?)"
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
            'Write "# %% name" or "# %% [markdown]", then tags=["parameters"] if needed.'
        )
    name = match["name"] or f"cell-{index + 1}"
    source = "\n".join(lines).strip("\n")
    metadata: dict[str, Any] = {"tags": _TAGS.findall(match["tags"] or "")}
    if match["kind"]:
        text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in source.split("\n"))
        return {"cell_type": "markdown", "id": name, "metadata": metadata, "source": text}
    metadata["name"] = name
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": name,
        "metadata": metadata,
        "outputs": [],
        "source": source,
    }


def scripts(root: Path | None = None) -> list[Path]:
    """The percent scripts of a folder of templates."""
    return sorted((root or template_root()).glob("*.py"))


def main(arguments: list[str] | None = None) -> int:
    """Build every template, or with ``--check`` compare only.

    Raises:
        CheckFailedError: A notebook does not agree with its script.
    """
    check = "--check" in (sys.argv[1:] if arguments is None else arguments)
    for script in scripts():
        notebook, text = script.with_suffix(".ipynb"), build(script)
        same = notebook.is_file() and notebook.read_text(encoding="utf-8") == text
        if check and not same:
            raise CheckFailedError(
                f"The notebook {notebook.name!r} does not agree with {script.name!r}, so a report "
                "would run something else than what was reviewed. Build it again: "
                "python -m workbench.reports.build_templates"
            )
        if not same:
            notebook.write_text(text, encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
