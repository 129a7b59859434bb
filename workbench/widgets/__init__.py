"""The panel in Jupyter: regions over one frozen state, and a replay in a child process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.lazy import names_on_first_use

if TYPE_CHECKING:
    from workbench.widgets.panel import Workbench

__all__ = ["Workbench"]

__getattr__ = names_on_first_use(__name__, {"panel": ("Workbench",)})
