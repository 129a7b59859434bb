"""Where templates are, and what parameters a template takes."""

from __future__ import annotations

import ast
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from workbench.errors import CannotRunError, UsageError
from workbench.numerics import jsonio
from workbench.reports.percent import build

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
        default: Its default, as it is written in the template.
    """

    name: str
    type: str
    help: str
    default: str = ""


@dataclass(frozen=True)
class Template:
    """A papermill template.

    Attributes:
        name: Its name, without suffix.
        path: The file: a notebook, or the percent script one is built from.
        text: The notebook as JSON text.
        digest: ``sha256:…`` of the notebook.
        parameters: Its parameters by name.
        modules: Folders its cells may import from: its own, when it is not of the package.
    """

    name: str
    path: Path
    text: str
    digest: str
    parameters: dict[str, Parameter]
    modules: tuple[Path, ...] = ()

    @property
    def bundles(self) -> int:
        """How many bundles one report is about: two with a parameter ``other``, or none at all."""
        if "bundle" not in self.parameters:
            return 0
        return 2 if "other" in self.parameters else 1

    def notebook(self) -> Any:
        """The notebook as papermill takes it."""
        import nbformat

        return nbformat.reads(self.text, as_version=4)


def names() -> list[str]:
    """Names of the templates that come with the package."""
    return sorted(path.stem for path in template_root().glob("*.ipynb"))


def find_template(template: str | Path) -> Template:
    """Find a template by name, or take one of the user's own.

    Args:
        template: A name; or a path to a notebook, to a percent script, to a folder with one
            template in it, or to ``folder/name`` without a suffix.

    Raises:
        UsageError: No such template, or it declares no parameters.
    """
    if str(template) in names():
        return _template(template_root() / f"{template}.ipynb")
    path = _own(Path(template).expanduser(), str(template))
    return _template(path, (path.resolve().parent,))


_SUFFIXES = (".py", ".ipynb")


def _own(path: Path, given: str) -> Path:
    """The file of a template of the user's own; the script where both are there."""
    if path.is_dir():
        found = {p.stem: p for s in reversed(_SUFFIXES) for p in sorted(path.glob(f"*{s}"))}
        kept = {name: p for name, p in found.items() if p.suffix == ".ipynb" or _is_script(p)}
        if len(kept) == 1:
            return next(iter(kept.values()))
        listed = ", ".join(sorted(kept)) or "none"
        raise UsageError(
            f"The folder {given!r} has {len(kept)} templates ({listed}), and a report is made "
            "from one, so nothing was run. Give the one that is meant, for example "
            f"--template {(path / min(kept, default='name.py')).as_posix()}"
        )
    if path.is_file() and path.suffix in _SUFFIXES:
        return path
    for suffix in _SUFFIXES:
        beside = path.with_name(f"{path.name}{suffix}")
        if beside.is_file():
            return beside
    raise UsageError(
        f"There is no report template {given!r}; there are: {', '.join(names())}. Give one of "
        "these names, or the path of a folder, notebook (.ipynb) or percent script (.py) of your "
        "own."
    )


def _is_script(path: Path) -> bool:
    """Whether a Python file is a template; a module beside one is not."""
    return any(line.startswith("# %%") for line in path.read_text("utf-8").splitlines())


def _template(path: Path, modules: tuple[Path, ...] = ()) -> Template:
    if path.suffix == ".py":
        text = build(path)
    else:
        text = path.read_text(encoding="utf-8")
        jsonio.loads(text)
    digest = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    return Template(path.stem, path, text, digest, _parameters(path, text), modules)


def _parameters(path: Path, text: str) -> dict[str, Parameter]:
    import nbformat
    from papermill import inspect_notebook
    from papermill.iorw import load_notebook_node
    from papermill.utils import find_first_tagged_cell_index

    node = load_notebook_node(nbformat.reads(text, as_version=4))
    index = find_first_tagged_cell_index(node, "parameters")
    if index < 0:
        raise UsageError(
            f"The template {str(path)!r} has no cell tagged 'parameters', so a run would silently "
            "ignore the bundle it is given. Tag the cell that holds the defaults."
        )
    found = {
        name: Parameter(
            name, str(item["inferred_type_name"]), str(item["help"] or ""), str(item["default"])
        )
        for name, item in inspect_notebook(node).items()
    }
    unread = sorted(_assigned("".join(node.cells[index].source)) - found.keys())
    if unread:
        raise UsageError(
            f"The template {str(path)!r} sets {unread[0]!r} in a way that papermill does not read, "
            "so it would refuse a value for it. Write one parameter a line, name: type = value, "
            "and no equals sign in the comment behind it."
        )
    return found


def _assigned(source: str) -> set[str]:
    """Names that a cell sets; empty where it is not Python."""
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return set()
    targets = [t for n in body if isinstance(n, ast.Assign) for t in n.targets]
    targets += [node.target for node in body if isinstance(node, ast.AnnAssign)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


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
