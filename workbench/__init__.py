"""Record, replay and explain the PyTorch training step that met NaN or Inf.

The public names are resolved on first use, so that ``import workbench`` loads neither torch nor
plotly nor Jupyter.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> the room that has it.
_HOMES = {
    "TrainingStep": "workbench.step",
    "Autocast": "workbench.step",
    "Domain": "workbench.step",
    "Recorder": "workbench.record",
    "Policy": "workbench.record",
    "Alerts": "workbench.record",
    "StrictJsonLogger": "workbench.record",
    "NonFiniteError": "workbench.errors",
    "Conditions": "workbench.evidence",
    "open_bundle": "workbench.evidence",
    "Replay": "workbench.replay",
    "diagnose": "workbench.diagnose",
    "Workbench": "workbench.widgets",
    "report": "workbench.reports",
}
# Rooms that need the extra [lab], and what of it they need.
_LAB = {
    "workbench.widgets": ("ipywidgets", "anywidget", "plotly", "xarray"),
    "workbench.reports": ("papermill", "nbconvert", "jinja2", "plotly", "xarray"),
}

__all__ = [
    "Alerts",
    "Autocast",
    "Conditions",
    "Domain",
    "NonFiniteError",
    "Policy",
    "Recorder",
    "Replay",
    "StrictJsonLogger",
    "TrainingStep",
    "Workbench",
    "diagnose",
    "open_bundle",
    "report",
]

if TYPE_CHECKING:
    from workbench.diagnose import diagnose
    from workbench.errors import NonFiniteError
    from workbench.evidence import Conditions, open_bundle
    from workbench.record import Alerts, Policy, Recorder, StrictJsonLogger
    from workbench.replay import Replay
    from workbench.reports import report
    from workbench.step import Autocast, Domain, TrainingStep
    from workbench.widgets import Workbench


def __getattr__(name: str) -> Any:
    """Resolve a public name on first use and keep it.

    Raises:
        CannotRunError: the name needs an optional package that is not installed.
    """
    home = _HOMES.get(name)
    if home is None:
        message = f"module 'workbench' has no attribute {name!r}"
        raise AttributeError(message)
    _require_lab(name, home)
    room = importlib.import_module(home)
    # `workbench.diagnose` is room and function in one: the module is callable
    value = room if home == f"{__name__}.{name}" else getattr(room, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def _require_lab(name: str, home: str) -> None:
    """Refuse in one clear paragraph where an optional package is missing."""
    missing = [package for package in _LAB.get(home, ()) if find_spec(package) is None]
    if not missing:
        return
    from workbench.errors import CannotRunError

    raise CannotRunError(
        f"workbench.{name} needs {', '.join(map(repr, missing))}, which is not installed here. It "
        "is an optional part: recording, inspect, replay and diagnose work without it. Install it "
        "with: pip install 'nonfinite-workbench[lab]'"
    )
