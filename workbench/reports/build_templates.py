"""Build the template notebooks: ``python -m workbench.reports.build_templates``.

``--check`` only says whether notebooks and percent scripts agree. A folder as last word builds the
templates of that folder instead of those of the package.
"""

from __future__ import annotations

import sys
from pathlib import Path

from workbench.errors import CheckFailedError
from workbench.reports.percent import build
from workbench.reports.templates import template_root

__all__ = ["build", "main", "scripts"]


def scripts(root: Path | None = None) -> list[Path]:
    """The percent scripts of a folder of templates."""
    return sorted((root or template_root()).glob("*.py"))


def main(arguments: list[str] | None = None) -> int:
    """Build every template, or with ``--check`` compare only.

    Raises:
        CheckFailedError: A notebook does not agree with its script.
    """
    words = sys.argv[1:] if arguments is None else arguments
    check = "--check" in words
    folders = [Path(word) for word in words if word != "--check"]
    for script in scripts(folders[0] if folders else None):
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
