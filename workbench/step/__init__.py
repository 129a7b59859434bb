"""One training step: what the user writes, how it is run, and how its state is kept.

Names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.lazy import names_on_first_use

if TYPE_CHECKING:
    from workbench.step.locate import load_step, step_reference
    from workbench.step.names import inner_model, named_buffers, named_parameters
    from workbench.step.protocol import Autocast, Domain, ScalerLike, TrainingStep
    from workbench.step.rng import RngState, capture_rng, restore_rng
    from workbench.step.runner import Outcome, StepRunner
    from workbench.step.stages import ESTABLISHES, STAGES, Stage, Unit
    from workbench.step.state import StepSnapshot, StepState, capture_state, restore_state
    from workbench.step.storage import read_state, write_state

__all__ = [
    "ESTABLISHES",
    "STAGES",
    "Autocast",
    "Domain",
    "Outcome",
    "RngState",
    "ScalerLike",
    "Stage",
    "StepRunner",
    "StepSnapshot",
    "StepState",
    "TrainingStep",
    "Unit",
    "capture_rng",
    "capture_state",
    "inner_model",
    "load_step",
    "named_buffers",
    "named_parameters",
    "read_state",
    "restore_rng",
    "restore_state",
    "step_reference",
    "write_state",
]

__getattr__ = names_on_first_use(
    __name__,
    {
        "locate": (
            "load_step",
            "step_reference",
        ),
        "names": (
            "inner_model",
            "named_buffers",
            "named_parameters",
        ),
        "protocol": (
            "Autocast",
            "Domain",
            "ScalerLike",
            "TrainingStep",
        ),
        "rng": (
            "RngState",
            "capture_rng",
            "restore_rng",
        ),
        "runner": (
            "Outcome",
            "StepRunner",
        ),
        "stages": (
            "ESTABLISHES",
            "STAGES",
            "Stage",
            "Unit",
        ),
        "state": (
            "StepSnapshot",
            "StepState",
            "capture_state",
            "restore_state",
        ),
        "storage": (
            "read_state",
            "write_state",
        ),
    },
)
