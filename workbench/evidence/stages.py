"""The names of the ten stages of a training step, in order, and a stage's place among them."""

from __future__ import annotations

from typing import Literal, get_args

Stage = Literal[
    "input",
    "forward",
    "loss",
    "backward",
    "reduce",
    "unscale",
    "clip",
    "update",
    "after_update",
    "logging",
]

STAGES: tuple[Stage, ...] = get_args(Stage)

UNKNOWN: int = len(STAGES)
"""The place of a stage that this version does not know: after all others."""

_PLACES: dict[str, int] = {stage: place for place, stage in enumerate(STAGES)}


def stage_code(stage: str | None) -> int:
    """Place of a stage within a step; unknown ones come last."""
    return UNKNOWN if stage is None else _PLACES.get(stage, UNKNOWN)
