"""The ``workbench`` command: exit codes, and one paragraph for every error."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence
from typing import NoReturn

import click

import workbench
from workbench.cli import output
from workbench.cli.command import LazyGroup, debug_option
from workbench.errors import CannotRunError, UsageError, WorkbenchError
from workbench.evidence.wording import clean

_BUG = 1
_INTERRUPTED = 130

group = LazyGroup(
    name="workbench",
    help="Record, replay and explain the PyTorch training step that met NaN or Inf.",
    params=[debug_option()],
    epilog="Exit codes: 0 done, 2 wrong use, 3 bundle damaged, 4 cannot run here, 5 does not hold.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
click.version_option(workbench.__version__, prog_name="workbench")(group)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    Args:
        arguments: Those after the program's name; None takes them from the process.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        sys.exit(_run(words))
    except BrokenPipeError:
        # The reader went away (`workbench list | head`); that is no failure.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)


def _run(words: list[str]) -> int:
    debug = "--debug" in words
    try:
        with group.make_context("workbench", words or ["--help"], obj=words) as ctx:
            group.invoke(ctx)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        return _fail(_usage(error), UsageError.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _fail("Stopped by you.", _INTERRUPTED)
    except BrokenPipeError:
        raise
    except WorkbenchError as error:
        if debug:
            raise
        return _fail(str(error), error.exit_code)
    except Exception as error:  # the last line of defence: a paragraph, no traceback
        if debug:
            raise
        if isinstance(error, OSError) and error.filename is not None:
            return _fail(_unusable(error), CannotRunError.exit_code)
        return _fail(
            f"workbench met a bug of its own: {type(error).__name__}: {error}. No bundle was "
            "changed. Run the command again with --debug for the traceback, and report it with "
            "that.",
            _BUG,
        )
    return 0


def _unusable(error: OSError) -> str:
    return (
        f"The path {clean(error.filename)!r} cannot be used ({error.strerror}), so the command "
        "ended before it was done. No bundle was changed. Check that its folder is there and may "
        "be written to, and that its disk has room; or name another."
    )


def _usage(error: click.ClickException) -> str:
    ctx = getattr(error, "ctx", None)
    hint = f" `{ctx.command_path} --help` lists what it takes." if ctx is not None else ""
    return f"{error.format_message()}{hint}"


def _fail(message: str, code: int) -> int:
    """Write one paragraph to stderr; indented lines are commands and stay as they are."""
    lines = [
        line
        if line.startswith("  ")
        else textwrap.fill(line, 100, break_on_hyphens=False, break_long_words=False)
        for line in message.strip().split("\n")
    ]
    output.note("\n".join(lines))
    return code
