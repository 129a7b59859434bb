"""Options and arguments that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from workbench.cli.output import note
from workbench.errors import CannotRunError

if TYPE_CHECKING:
    from workbench.evidence import Bundle

_F = TypeVar("_F", bound=Callable[..., object])


def bundle_argument(function: _F) -> _F:
    """The path of a bundle."""
    return click.argument("bundle", type=click.Path(path_type=Path))(function)


def json_option(function: _F) -> _F:
    """Strict JSON on stdout and nothing else."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print strict JSON on stdout, nothing else."
    )(function)


def code_options(function: _F) -> _F:
    """How the step's code is found."""
    step = click.option(
        "--step", metavar="REFERENCE", help="Your code: package.module:Name or file.py:Name."
    )
    trust = click.option(
        "--trust",
        type=click.Choice(["import", "source"]),
        help="Run what the bundle names: import its module, or run the source text in the bundle.",
    )
    return step(trust(function))


def dask_option(function: _F) -> _F:
    """Where the work goes, instead of processes of this machine."""
    return click.option(
        "--dask",
        metavar="ADDRESS",
        help="Use the workers of this Dask scheduler, tcp://HOST:PORT, instead of this machine.",
    )(function)


def require_code(bundle: Bundle, step: str | None, trust: str | None) -> None:
    """Refuse to run code that nobody named or trusted, with the full command that would work.

    Raises:
        CannotRunError: The bundle names a step, and neither ``--step`` nor ``--trust`` was given.
    """
    announce_source(bundle, trust)
    known = bundle.manifest.step_reference
    if step is not None or trust is not None or known.kind == "integration" or not known.reference:
        return
    source = f"\n{this_command('--trust', 'source')}" if known.source else ""
    raise CannotRunError(
        f"The bundle names the training step {known.reference[:200]!r}. Replaying runs that code, "
        "and opening a bundle trusts nothing in it. When you trust it, import it, run the source "
        "text that came with the bundle, or name your own copy:\n"
        f"{this_command('--trust', 'import')}{source}\n"
        f"{this_command('--step', known.reference[:200])}"
    )


def announce_source(bundle: Bundle, trust: str | None) -> None:
    """Print the digest of the source text before it is run."""
    known = bundle.manifest.step_reference
    if trust == "source" and known.digest:
        note(f"Running {known.source} from the bundle, {known.digest}")


def this_command(*added: str) -> str:
    """The running command with words added, indented, ready to be copied."""
    from workbench.evidence.wording import command_line

    words: list[str] = click.get_current_context().find_root().obj or []
    return f"  {command_line(*words, *added)}"


def code_words(step: str | None, trust: str | None) -> list[str] | None:
    """The words that named the step's code in this call; None where it was not named."""
    if step is not None:
        return ["--step", step]
    return None if trust is None else ["--trust", trust]


def newest_bundle(given: Path | None) -> Path:
    """The bundle given, or the newest below the current directory, which is then said.

    Raises:
        CannotRunError: None was given and none is here.
    """
    if given is not None:
        return given
    from workbench.evidence import find_bundles

    found = find_bundles(Path.cwd())
    if not found:
        raise CannotRunError(
            f"No bundle was named, and there is none below {str(Path.cwd())!r}, so there is "
            "nothing to show. Name one, or make one: workbench demo"
        )
    path = found[0].relative_to(Path.cwd())
    note(f"Taking the newest bundle here: {path}")
    return path
