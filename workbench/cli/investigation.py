"""The guided notebook, copied with a bundle's path set in its parameters cell."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from workbench.errors import CannotRunError

_ASSIGNMENT = r"^(?P<name>{})(?P<type>\s*:[^=\n]+?)?\s*=[^\n]*?(?P<help>\s*#[^\n]*)?$"


def notebook_source(name: str = "investigate") -> Path:
    """Find a notebook that comes with the package.

    Raises:
        CannotRunError: The installation lacks it.
    """
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "notebooks", package.parent / "notebooks"):
        path = folder / f"{name}.ipynb"
        if path.is_file():
            return path
    raise CannotRunError(
        f"The notebook '{name}.ipynb' is not in this installation, so there is nothing to open. "
        "Install nonfinite-workbench again from its wheel, or work in a full checkout."
    )


def write_notebook(bundle: Path, directory: Path, step: str | None = None) -> tuple[Path, bool]:
    """Write the investigation notebook for a bundle; one that is there already is kept.

    Args:
        bundle: The bundle.
        directory: Where the notebook goes.
        step: The user's own reference to the step's code, or None to be asked for it.

    Returns:
        The notebook, and whether it was written now.

    Raises:
        CannotRunError: The installation lacks the notebook, or it has no parameters cell.
    """
    from workbench.numerics import jsonio

    stem = bundle.name.removesuffix(".zip").removesuffix(".bundle")
    target = directory / f"investigate-{stem}.ipynb"
    if target.exists():
        return target, False
    source = notebook_source()
    notebook = jsonio.loads(source.read_bytes())
    cells = notebook.get("cells", [])
    if step:
        for cell in cells:
            _set_parameter(cell, "step", step)
    if not any(_set_parameter(cell, "bundle", str(bundle.resolve())) for cell in cells):
        raise CannotRunError(
            f"The notebook {str(source)!r} has no cell tagged 'parameters' that sets the bundle, "
            "so the copy would open another one. Install nonfinite-workbench again."
        )
    target.write_text(jsonio.dumps(notebook, indent=1) + "\n", encoding="utf-8")
    return target, True


def _set_parameter(cell: dict[str, Any], name: str, value: str) -> bool:
    if "parameters" not in cell.get("metadata", {}).get("tags", []):
        return False
    text = "".join(cell["source"])
    # A function, since a path may hold backslashes that a replacement text would interpret.
    changed, count = re.subn(
        _ASSIGNMENT.format(name),
        lambda m: f"{m['name']}{m['type'] or ''} = {value!r}{m['help'] or ''}",
        text,
        count=1,
        flags=re.M,
    )
    cell["source"] = changed.splitlines(keepends=True)
    return count == 1
