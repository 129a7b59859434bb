"""Command lines that the findings propose: a bundle by its name, its code by its reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.evidence.wording import clean, command_line

if TYPE_CHECKING:
    from workbench.evidence import Bundle


def step_words(bundle: Bundle) -> list[str]:
    """The words that name the step's code on a command line; none for code of this package."""
    known = bundle.manifest.step_reference
    if known.kind == "integration":
        return []
    return ["--step", clean(known.reference, 200) if known.reference else "module:Name"]


def diagnose_command(bundle: Bundle, name: str = "") -> str:
    """``workbench diagnose NAME --step CODE``.

    Args:
        bundle: The bundle whose code it is.
        name: The bundle to diagnose, of the same run; empty for ``bundle`` itself.
    """
    wanted = clean(name or bundle.path.name, 240)
    return command_line("diagnose", wanted, *step_words(bundle))
