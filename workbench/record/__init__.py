"""The recorder: in the training process, seals the evidence of the step that met NaN or Inf.

Names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.lazy import names_on_first_use

if TYPE_CHECKING:
    from workbench.record.low_level import LowLevelStep
    from workbench.record.policy import Alerts, Policy
    from workbench.record.recorder import Recorder
    from workbench.record.result import StepResult
    from workbench.record.strict_log import StrictJsonHandler, StrictJsonLogger
    from workbench.record.trip import Finding, Trip

__all__ = [
    "Alerts",
    "Finding",
    "LowLevelStep",
    "Policy",
    "Recorder",
    "StepResult",
    "StrictJsonHandler",
    "StrictJsonLogger",
    "Trip",
]

__getattr__ = names_on_first_use(
    __name__,
    {
        "low_level": ("LowLevelStep",),
        "policy": (
            "Alerts",
            "Policy",
        ),
        "recorder": ("Recorder",),
        "result": ("StepResult",),
        "strict_log": (
            "StrictJsonHandler",
            "StrictJsonLogger",
        ),
        "trip": (
            "Finding",
            "Trip",
        ),
    },
)
