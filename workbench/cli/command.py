"""The command and group classes: sections of the help, ``--debug`` everywhere, lazy loading."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import click

from workbench.cli import commands, output

SECTIONS = ("Look", "Run", "Share", "Keep", "Development")
"""The five groups of the help, in order."""


class _InSection(click.Command):
    """A command with a place in the help, whose stdout is kept for its facts."""

    def __init__(self, *args: Any, section: str, order: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if section not in SECTIONS:
            raise ValueError(section)
        self.section = section
        self.order = order

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command with stdout kept for its facts."""
        with output.facts_only():
            return super().invoke(ctx)


class Command(_InSection):
    """A command that belongs to a section of the help.

    Args:
        section: One of ``SECTIONS``.
        order: Its place within the section.
        **kwargs: Those of ``click.Command``.
    """

    def __init__(self, *args: Any, section: str, order: int, **kwargs: Any) -> None:
        super().__init__(*args, section=section, order=order, **kwargs)
        self.params.append(debug_option())


class CommandGroup(_InSection, click.Group):
    """A command with commands of its own, in a section of the help.

    Args:
        section: One of ``SECTIONS``.
        order: Its place within the section.
        **kwargs: Those of ``click.Group``.
    """

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command; each has ``--debug``."""
        cmd.params.append(debug_option())
        super().add_command(cmd, name)


class LazyGroup(click.Group):
    """A group whose commands are the modules of ``workbench.cli.commands``, imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name every command; a module there is a command."""
        del ctx
        return sorted(
            module.name.replace("_", "-") for module in pkgutil.iter_modules(commands.__path__)
        )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command by name."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"{commands.__name__}.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in their sections."""
        found = [c for name in self.list_commands(ctx) if (c := self.get_command(ctx, name))]
        for section in SECTIONS:
            members = [
                c for c in found if isinstance(c, Command | CommandGroup) and c.section == section
            ]
            rows = [
                (c.name or "", c.get_short_help_str(limit=100))
                for c in sorted(members, key=lambda c: c.order)
            ]
            if rows:
                with formatter.section(section):
                    formatter.write_dl(rows)


def debug_option() -> click.Option:
    """Build the ``--debug`` option; ``main`` looks for it among the words itself."""
    return click.Option(
        ["--debug"], is_flag=True, expose_value=False, help="Show the traceback of an error."
    )
