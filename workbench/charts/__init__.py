"""Charts: tables and ledgers to arrays, arrays to plotly figures, tables and static drawings.

Each chart is one file of pure functions over the same arrays: ``figure`` (interactive), ``table``
(rows for readers and pages without scripts) and, where a picture helps there, ``drawing`` (SVG).
The same input gives the same bytes. Names are loaded on first use: words need no plotly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.lazy import names_on_first_use

if TYPE_CHECKING:
    from workbench.charts.registry import CHARTS, Chart

__all__ = ["CHARTS", "Chart"]

__getattr__ = names_on_first_use(__name__, {"registry": ("CHARTS", "Chart")})
