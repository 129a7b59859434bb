"""The page that lists the reports of a batch."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import __version__
from workbench.charts.words import number
from workbench.evidence.wording import counted
from workbench.reports import blocks
from workbench.reports.blocks import Block, Section
from workbench.reports.page import About, write_page
from workbench.reports.run import write

if TYPE_CHECKING:
    from workbench.reports.batch import Made

_STATES = {
    "made": "complete",
    "kept": "complete, kept from an earlier run",
    "incomplete": "incomplete",
    "failed": "not made",
    "stopped": "stopped",
}


def write_index(target: Path, reports: Sequence[Made], template: str) -> None:
    """Write the page: one row a bundle, with a link where there is a report.

    Args:
        target: The file; the reports lie beside it.
        reports: The reports.
        template: Name of their template.
    """
    now = datetime.datetime.now(tz=datetime.UTC)
    about = About(
        [("Template", template), ("Versions", f"nonfinite-workbench {__version__}")],
        {"schema": "workbench.report-index/1", "template": template},
        f"Made {now:%Y-%m-%d %H:%M:%S} UTC.",
    )
    write(target, write_page(_notebook(_section(reports, template)), about))


def _section(reports: Sequence[Made], template: str) -> Section:
    done = sum(1 for made in reports if made.exit_code == 0)
    headline = f"Complete: {number(done)} of {counted(len(reports), 'report')}."
    tone = "" if done == len(reports) else "alert"
    rows: list[tuple[str, ...]] = [
        (
            made.bundle.name,
            made.output.name if made.output.is_file() else "",
            made.headline,
            _STATES.get(made.state, made.state),
            made.reason,
        )
        for made in reports
    ]
    headers = ["Bundle", "What it says", "State", "Why"]
    if not any(made.reason for made in reports):
        rows, headers = [row[:-1] for row in rows], headers[:-1]
    shown: list[Block] = [
        blocks.title(f"Reports from the template {template}", "", headline, tone),
        blocks.links("One row a bundle; the name opens its report.", headers, rows),
    ]
    return Section("summary", shown)


def _notebook(section: Section) -> Any:
    import nbformat

    outputs = [nbformat.v4.new_output("display_data", data=data) for data in section.bundles()]
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("", outputs=outputs)])
