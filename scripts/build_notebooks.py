"""Build the notebooks from their percent scripts: ``python scripts/build_notebooks.py``.

``--check`` only says whether both agree.
"""

from __future__ import annotations

import sys
from pathlib import Path

from workbench.reports.build_templates import build, scripts

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"


def main(arguments: list[str]) -> int:
    """Build every notebook, or compare only; 1 when one does not agree with its script."""
    stale = 0
    for script in scripts(NOTEBOOKS):
        notebook, text = script.with_suffix(".ipynb"), build(script)
        if notebook.is_file() and notebook.read_text(encoding="utf-8") == text:
            continue
        if "--check" in arguments:
            print(f"{notebook.name} does not agree with {script.name}; build it again")
            stale = 1
        else:
            notebook.write_text(text, encoding="utf-8", newline="\n")
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
