"""Command lines that the findings propose: a bundle by its name, its code by its reference."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from workbench.evidence.wording import clean

if TYPE_CHECKING:
    from workbench.evidence import Bundle


def step_option(bundle: Bundle) -> str:
    """How the step's code is named on a command line, with a blank before it; empty for none."""
    known = bundle.manifest.step_reference
    if known.kind == "integration" or not known.reference:
        return "" if known.kind == "integration" else " --step module:Name"
    return f" --step {shlex.quote(clean(known.reference, 200))}"


def diagnose_command(bundle: Bundle, name: str = "") -> str:
    """``workbench diagnose NAME --step CODE``.

    Args:
        bundle: The bundle whose code it is.
        name: The bundle to diagnose, of the same run; empty for ``bundle`` itself.
    """
    wanted = shlex.quote(clean(name or bundle.path.name, 240))
    return f"workbench diagnose {wanted}{step_option(bundle)}"
