"""Find the tensors behind the names that gates give to sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from workbench.replay.trace_plan import floating
from workbench.step import gates
from workbench.step.names import named_buffers, named_parameters

if TYPE_CHECKING:
    from torch import Tensor

    from workbench.step.runner import StepRunner


def scaler_tensors(scaler: Any) -> list[tuple[str, Tensor]]:
    """List the tensors a scaler holds as plain attributes."""
    if scaler is None:
        return []
    values = getattr(scaler, "__dict__", {})
    return [(k, v) for k, v in values.items() if isinstance(v, torch.Tensor)]


def find_sink(runner: StepRunner, bad: gates.BadTensor) -> Tensor | None:
    """Return the tensor a gate found bad."""
    _, _, name = bad.name.partition(":")
    if bad.kind == "loss":
        component = bad.name.partition(".")[2]
        if component:
            return runner.values.components[-1].get(component)
        return runner.values.losses[-1]
    if bad.kind == "grad_norm":
        norm = runner.values.grad_norm
        return norm if isinstance(norm, torch.Tensor) else None
    if bad.kind in ("parameter", "gradient"):
        for own, parameter in named_parameters(runner.model):
            if own == name:
                return parameter if bad.kind == "parameter" else parameter.grad
    if bad.kind == "buffer":
        return next((b for n, b in named_buffers(runner.model) if n == name), None)
    if bad.kind == "optimizer_state":
        found = gates.optimizer_state_tensors(runner.model, runner.optimizers)
        return next((t for n, t in found if n == bad.name), None)
    if bad.kind == "loss_scale":
        tensors = [t for _, t in scaler_tensors(runner.scaler) if floating(t)]
        return next((t for t in tensors if not bool(torch.isfinite(t).all())), None)
    return None
