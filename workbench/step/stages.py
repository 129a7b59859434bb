"""The ten stages of a training step and the units a runner executes.

A stage is where in a step something happens, by what is done, not by who calls it: unscaling that
``scaler.step()`` does on its own is ``unscale``, not ``update``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from workbench.evidence.stages import STAGES as STAGES
from workbench.evidence.stages import Stage as Stage

ESTABLISHES: dict[Stage, str] = {
    "input": "Whether the batch was already non-finite, or outside its declared ranges.",
    "forward": "Whether non-finite values have already appeared in inputs or activations.",
    "loss": "Whether the loss or one of its components is non-finite.",
    "backward": "Whether backward exposes an anomaly; gradients may still be scaled here.",
    "reduce": "Whether the gradient collective received or spread a non-finite value.",
    "unscale": "Whether gradients are finite once the loss scale is divided out.",
    "clip": "Whether the gradient norm is finite; clipping cannot repair a non-finite gradient.",
    "update": "Whether a parameter update was attempted, and whether it really ran.",
    "after_update": "Whether parameters, buffers, optimizer state and loss scale are finite now.",
    "logging": "Whether the observation itself failed, and what the original exception was.",
}
"""What looking at a stage can establish, in one sentence each."""


@dataclass(frozen=True)
class Unit:
    """One execution of one stage: the smallest thing a runner advances by."""

    stage: Stage
    phase: str = "main"
    micro_step: int = 0


@lru_cache(maxsize=64)
def plan(phases: tuple[str, ...], micro_steps: int) -> tuple[Unit, ...]:
    """List the units of one step in the order they are executed.

    Args:
        phases: Phases of the step; ``("main",)`` unless the step has several optimizers in turn.
        micro_steps: Number of micro-batches accumulated before an update, at least 1.

    Returns:
        Units in order; each phase accumulates all its micro-batches, then updates once.
    """
    units: list[Unit] = []
    for phase in phases:
        for micro_step in range(micro_steps):
            names: tuple[Stage, ...] = ("input", "forward", "loss", "backward")
            units += [Unit(stage, phase, micro_step) for stage in names]
        last = micro_steps - 1
        tail: tuple[Stage, ...] = ("reduce", "unscale", "clip", "update", "after_update")
        units += [Unit(stage, phase, last) for stage in tail]
    units.append(Unit("logging", phases[-1], micro_steps - 1))
    return tuple(units)
