"""The recorder: in the training process, seals the evidence of the step that met NaN or Inf."""

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
