"""The panel in Jupyter: regions over one frozen state, and a replay in a child process."""

from workbench.widgets.panel import Workbench

__all__ = ["Workbench"]
