"""A small way to trace a step written in a few lines."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from workbench.replay.trace import Trace, trace_step
from workbench.replay.trace_kept import KeptPass, keep_events
from workbench.step.protocol import Autocast, TrainingStep
from workbench.step.runner import StepRunner


class FunctionStep(TrainingStep):
    """A training step made of two functions."""

    def __init__(
        self,
        forward: Callable[[Any, Any], Any],
        loss: Callable[[Any, Any], Any],
        autocast: Autocast | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        self._forward, self._loss = forward, loss
        self.autocast = autocast
        self.max_grad_norm = max_grad_norm

    def forward(self, model: nn.Module, batch: Any) -> Any:
        return self._forward(model, batch)

    def loss(self, outputs: Any, batch: Any) -> Any:
        return self._loss(outputs, batch)


def trace_of(
    model: nn.Module,
    batch: Any,
    forward: Callable[[Any, Any], Any] = lambda model, batch: model(batch),
    loss: Callable[[Any, Any], Any] = lambda out, batch: out.pow(2).mean(),
    *,
    optimizer: torch.optim.Optimizer | None = None,
    scaler: Any = None,
    stop_when_bad: bool = True,
    **step: Any,
) -> Trace:
    """Trace one step of a model; the optimizer is SGD unless one is given."""
    runner = _begun(FunctionStep(forward, loss, **step), model, batch, optimizer, scaler)
    return trace_step(runner, micro_batches=[batch], stop_when_bad=stop_when_bad)


def kept_of(
    events: Collection[int],
    model: nn.Module,
    batch: Any,
    forward: Callable[[Any, Any], Any] = lambda model, batch: model(batch),
    loss: Callable[[Any, Any], Any] = lambda out, batch: out.pow(2).mean(),
    *,
    optimizer: torch.optim.Optimizer | None = None,
    scaler: Any = None,
    **step: Any,
) -> KeptPass:
    """Run the same step again and keep what some of its events were given."""
    runner = _begun(FunctionStep(forward, loss, **step), model, batch, optimizer, scaler)
    return keep_events(runner, events)


def _begun(
    step: TrainingStep,
    model: nn.Module,
    batch: Any,
    optimizer: torch.optim.Optimizer | None,
    scaler: Any,
) -> StepRunner:
    chosen = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    runner = StepRunner(step, model, [chosen], scaler)
    runner.begin([batch])
    return runner
