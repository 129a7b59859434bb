"""Reports: a papermill run of a template, then one HTML file that opens anywhere, offline.

Names are loaded on first use: the cells of a template need no papermill.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.lazy import names_on_first_use

if TYPE_CHECKING:
    from workbench.reports.batch import Batch, report_batch
    from workbench.reports.extract import extract_findings
    from workbench.reports.run import report
    from workbench.reports.templates import find_template, read_parameters

__all__ = [
    "Batch",
    "extract_findings",
    "find_template",
    "read_parameters",
    "report",
    "report_batch",
]

__getattr__ = names_on_first_use(
    __name__,
    {
        "batch": ("Batch", "report_batch"),
        "extract": ("extract_findings",),
        "run": ("report",),
        "templates": ("find_template", "read_parameters"),
    },
)
