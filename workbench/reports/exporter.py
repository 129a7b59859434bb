"""The page as an nbconvert exporter: ``jupyter nbconvert --to workbench notebook.ipynb``."""

from __future__ import annotations

from typing import Any

from nbconvert.exporters import Exporter

from workbench.reports.page import write_page


class WorkbenchExporter(Exporter):
    """One HTML file of an executed notebook, offline and with charts."""

    export_from_notebook = "Workbench report (one HTML file)"
    output_mimetype = "text/html"

    def _file_extension_default(self) -> str:
        return ".html"

    def from_notebook_node(  # type: ignore[override]
        self, nb: Any, resources: Any = None, **kw: Any
    ) -> tuple[str, dict[str, Any]]:
        """Write the page.

        Returns:
            The HTML and nbconvert's resources.
        """
        copied, resources = super().from_notebook_node(nb, resources, **kw)
        return write_page(copied), resources
