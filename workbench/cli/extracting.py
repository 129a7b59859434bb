"""``workbench report --extract``: the findings that a page carries, as a file or on stdout."""

from __future__ import annotations

import os
from pathlib import Path

from workbench.cli.output import emit, say
from workbench.errors import CannotRunError, UsageError


def extract(page: Path, output: Path | None) -> None:
    """Write the findings of a report; nothing of the page is run.

    Args:
        page: The report.
        output: Where they go; stdout when None.

    Raises:
        BundleError: The page is no report, or carries no findings.
        UsageError: The output would replace the page.
        CannotRunError: The file cannot be written.
    """
    from workbench.numerics import jsonio
    from workbench.reports import extract_findings

    if output is not None and output.exists() and page.exists() and output.samefile(page):
        raise UsageError(
            f"The findings of {str(page)!r} would replace the report itself. Name another file "
            "with -o."
        )
    found = extract_findings(page)
    if output is None:
        emit(found)
        return
    part = output.with_name(f".{output.name}.{os.getpid()}.part")
    try:
        part.write_text(jsonio.dumps(found, indent=2) + "\n", encoding="utf-8")
        part.replace(output)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise CannotRunError(
            f"The findings cannot be written to {str(output)!r} ({error}). Choose another place "
            "with -o."
        ) from error
    say(str(output))
