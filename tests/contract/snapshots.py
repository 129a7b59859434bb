"""The public names and the command line as text; run as a module it writes them anew."""

from __future__ import annotations

import inspect
from pathlib import Path

import click

import workbench
from tests.contract import messages
from workbench.cli.main import group

FOLDER = Path(__file__).parent / "snapshots"


def public_names() -> str:
    """Every public name with its signature, and the public members of classes."""
    lines = []
    for name in workbench.__all__:
        found = getattr(workbench, name)
        if inspect.isclass(found):
            lines.append(f"class {name}{_signature(found)}")
            lines += [f"    {member}" for member in _members(found)]
        else:
            function = getattr(found, name, found)  # a callable room holds its function
            lines.append(f"{name}{_signature(function)}")
    return "\n".join(lines) + "\n"


def _members(kind: type) -> list[str]:
    # Exceptions and structs bring members of their own that are not this package's to keep.
    own = [base for base in kind.__mro__ if base.__module__.startswith("workbench.")]
    members = {
        name: value
        for base in reversed(own)
        for name, value in vars(base).items()
        if not name.startswith("_")
    }
    return [
        f"{name}{_signature(value)}" if callable(value) else name
        for name, value in sorted(members.items())
    ]


def _signature(value: object) -> str:
    """Parameters with defaults; annotations are mypy's to check."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "(…)"
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(inspect.Signature(bare))


def command_line() -> str:
    """Every command with its arguments and options."""
    ctx = click.Context(group)
    lines = []
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        lines.append(f"{name}  [{command.section}]")
        lines += [f"    {_parameter(parameter)}" for parameter in command.params]
    return "\n".join(lines) + "\n"


def _parameter(parameter: click.Parameter) -> str:
    words = "/".join([*parameter.opts, *parameter.secondary_opts])
    kind = parameter.type.name
    if isinstance(parameter.type, click.Choice):
        kind = "|".join(parameter.type.choices)
    flags = [
        word
        for word, on in (
            ("required", parameter.required),
            ("repeated", getattr(parameter, "multiple", False)),
            ("flag", getattr(parameter, "is_flag", False)),
        )
        if on
    ]
    return " ".join([words, kind, *flags])


SNAPSHOTS = {
    "public_names.txt": public_names,
    "command_line.txt": command_line,
    "errors.txt": messages.table,
}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, make in SNAPSHOTS.items():
        (FOLDER / file).write_text(make(), encoding="utf-8")
