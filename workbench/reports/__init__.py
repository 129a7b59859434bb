"""Reports: a papermill run of a template, then one HTML file that opens anywhere, offline."""

from __future__ import annotations

from workbench.reports.extract import extract_findings
from workbench.reports.run import report
from workbench.reports.templates import read_parameters

__all__ = ["extract_findings", "read_parameters", "report"]
