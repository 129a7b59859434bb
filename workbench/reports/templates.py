"""Where templates are, and what parameters a template takes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from workbench.errors import CannotRunError, UsageError
from workbench.numerics import jsonio

_TYPES: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool}


@cache
def template_root() -> Path:
    """The folder of templates: inside the package when installed, beside it in a checkout.

    Raises:
        CannotRunError: The installation has no templates.
    """
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "templates", package.parent / "templates"):
        if (folder / "page").is_dir():
            return folder
    raise CannotRunError(
        f"No report templates beside the package in {str(package)!r}, so no report can be made. "
        "Install nonfinite-workbench again from its wheel, or work in a full checkout."
    )


@dataclass(frozen=True)
class Parameter:
    """One parameter of a template.

    Attributes:
        name: Its name.
        type: ``str``, ``int``, ``float`` or ``bool``.
        help: The comment beside it.
    """

    name: str
    type: str
    help: str


@dataclass(frozen=True)
class Template:
    """A papermill template.

    Attributes:
        name: Its name, without suffix.
        path: The notebook.
        digest: ``sha256:…`` of the notebook.
        parameters: Its parameters by name.
    """

    name: str
    path: Path
    digest: str
    parameters: dict[str, Parameter]


def names() -> list[str]:
    """Names of the templates that come with the package."""
    return sorted(path.stem for path in template_root().glob("*.ipynb"))


def find_template(template: str | Path) -> Template:
    """Find a template by name, or take a notebook of the user's own.

    Raises:
        UsageError: No such template, or it declares no parameters.
    """
    path = Path(template)
    if path.suffix != ".ipynb":
        path = template_root() / f"{template}.ipynb"
        if str(template) not in names():
            raise UsageError(
                f"There is no report template {str(template)!r}; there are: {', '.join(names())}. "
                "Give one of these names, or the path of a notebook that ends in .ipynb."
            )
    if not path.is_file():
        raise UsageError(
            f"The template notebook {str(template)!r} does not exist, so nothing was run. "
            "Check the path."
        )
    data = path.read_bytes()
    jsonio.loads(data)
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return Template(path.stem, path, digest, _parameters(path))


def _parameters(path: Path) -> dict[str, Parameter]:
    from papermill import inspect_notebook
    from papermill.iorw import load_notebook_node
    from papermill.utils import find_first_tagged_cell_index

    # papermill reads braces in a path as a format string
    node = load_notebook_node(str(path)) if "{" not in str(path) else None
    if node is None or find_first_tagged_cell_index(node, "parameters") < 0:
        raise UsageError(
            f"The template notebook {str(path)!r} has no cell tagged 'parameters' (or braces in "
            "its path), so a run would silently ignore the bundle it is given. Tag the cell that "
            "holds the defaults."
        )
    found = inspect_notebook(str(path))
    return {
        name: Parameter(name, str(item["inferred_type_name"]), str(item["help"] or ""))
        for name, item in found.items()
    }


def check_parameters(template: Template, given: Mapping[str, Any]) -> dict[str, Any]:
    """Check parameters before anything runs.

    Returns:
        The values, an int turned into a float where a float is asked for.

    Raises:
        UsageError: Unknown name, wrong type, or a number that is not finite.
    """
    return {name: _checked(template, name, value) for name, value in given.items()}


def read_parameters(template: str | Path, texts: Mapping[str, str]) -> dict[str, Any]:
    """Read parameters written as text, each by the type its template declares.

    A title of ``nan`` or ``007`` stays that text.

    Args:
        template: Name or path of the template.
        texts: Texts by name, for example from a command line.

    Raises:
        UsageError: Unknown name, or a text that is not a value of the parameter's type.
    """
    found = find_template(template)
    values = {name: _read(found, name, text) for name, text in texts.items()}
    return check_parameters(found, values)


_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _read(template: Template, name: str, text: str) -> Any:
    kind = template.parameters[name].type if name in template.parameters else "str"
    try:
        if kind == "bool":
            return _TRUTH[text.lower()]
        return {"int": int, "float": float}.get(kind, str)(text)
    except (KeyError, ValueError):
        # refused, with what the parameter means, by check_parameters
        return text


def _checked(template: Template, name: str, value: Any) -> Any:
    parameter = template.parameters.get(name)
    if parameter is None:
        raise UsageError(
            f"The template {template.name!r} has no parameter {name!r}; a run would ignore it. "
            f"It takes: {', '.join(sorted(template.parameters))}."
        )
    wanted = _TYPES.get(parameter.type)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if wanted is not None and type(value) is not wanted:
        raise UsageError(
            f"The parameter {name!r} of template {template.name!r} must be of type "
            f"{parameter.type}, but {value!r} is of type {type(value).__name__}. "
            f"It means: {parameter.help or 'not described'}."
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(
            f"The parameter {name!r} is {value!r}, which a notebook cannot hold: Jupyter would "
            "refuse to open it. Give a finite number, or a text parameter that says the same."
        )
    return value
