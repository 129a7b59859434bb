"""Whether a step may write parameters or optimizer state before its gate.

Optimizer state is normally written by the update alone, so it need not be kept before. A step that
brings its own backward or clipping, or steps its optimizer in gradient hooks, may write it earlier.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from workbench.step.protocol import TrainingStep

_EARLY = ("backward", "after_backward", "unscale", "clip")


def overrides(step: Any, name: str) -> bool:
    """Whether the user's step brings its own version of an optional method."""
    own = getattr(type(step), name, None)
    return own is not None and own is not getattr(TrainingStep, name)


def may_update_early(step: Any, model: nn.Module) -> bool:
    """Whether optimizer state may change before the gate.

    Args:
        step: The training step, or None for a low-level loop.
        model: The model; hooks on its parameters may step an optimizer inside backward.
    """
    if step is None or any(overrides(step, name) for name in _EARLY):
        return True
    if len(getattr(step, "phases", ())) > 1:
        return True
    return any(
        getattr(parameter, "_post_accumulate_grad_hooks", None) for parameter in model.parameters()
    )
