"""Charts: tables and ledgers to arrays, arrays to plotly figures, tables and static drawings.

Each chart is one file of pure functions over the same arrays: ``figure`` (interactive), ``table``
(rows for readers and pages without scripts) and, where a picture helps there, ``drawing`` (SVG).
The same input gives the same bytes.
"""

from __future__ import annotations

from workbench.charts.registry import CHARTS, Chart

__all__ = ["CHARTS", "Chart"]
