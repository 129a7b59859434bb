"""The step's runner under changed conditions: other autocast, other order of clip and unscale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from workbench.step.protocol import TrainingStep
from workbench.step.runner import StepRunner

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from workbench.evidence import Conditions
    from workbench.replay.reduction import Reduction
    from workbench.step.stages import Unit


class ReplayRunner(StepRunner):
    """A ``StepRunner`` that follows a set of conditions.

    Args:
        step: The training step.
        model: The model, built and restored.
        optimizers: The optimizers.
        scaler: The loss scaler, or None.
        conditions: What to run under.
        recorded: The original conditions.
    """

    def __init__(
        self,
        step: TrainingStep,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        scaler: Any,
        conditions: Conditions,
        recorded: Conditions,
    ) -> None:
        super().__init__(step, model, optimizers, scaler)
        self._conditions = conditions
        self._recorded = recorded
        self.autocast_seen: str | None = None
        self.reduction: Reduction | None = None
        self.reduces = False
        self._unscaled_first = False

    def autocast(self) -> AbstractContextManager[Any]:
        """The autocast region around forward and loss, under these conditions."""
        return self._watched(self._region())

    def _region(self) -> AbstractContextManager[Any]:
        wanted, recorded = self._conditions.autocast, self._recorded.autocast
        if wanted == "off" or recorded != "off":
            # regions of the step and of the user's own code are redirected where conditions differ
            return super().autocast()
        device = torch.device(self._conditions.device).type
        dtype = torch.bfloat16 if wanted == "bfloat16" else torch.float16
        return torch.autocast(device, dtype=dtype, cache_enabled=self._conditions.autocast_cache)

    @contextmanager
    def _watched(self, region: AbstractContextManager[Any]) -> Iterator[None]:
        with region:
            seen = autocast_now(torch.device(self._conditions.device).type)
            emulated = self._conditions.autocast == "cuda-policy" and seen != "off"
            self.autocast_seen = "cuda-policy" if emulated else seen
            yield

    def _unscale(self, unit: Unit) -> None:
        swapped = self._conditions.clip_before_unscale
        if swapped == self._recorded.clip_before_unscale:
            super()._unscale(unit)
            return
        if swapped and type(self.step).unscale is not TrainingStep.unscale:
            self._own_order_exchanged(unit)
            return
        if swapped:
            super()._clip(unit)
        # the user's own method may be what leaves the gradients scaled
        TrainingStep.unscale(self.step, self._optimizers_of(unit), self._scaler())

    def _own_order_exchanged(self, unit: Unit) -> None:
        """Exchange the order of a step with an ``unscale`` of its own.

        Whether that method unscales is known only once it ran: where it does not, the loop clips
        scaled gradients, and exchanged it unscales first.
        """
        parameters = [p for o in self._optimizers_of(unit) for g in o.param_groups
                      for p in g["params"] if p.grad is not None]  # fmt: skip
        held = [p.grad.detach().clone() for p in parameters]
        super()._unscale(unit)
        if not self.values.unscaled:
            TrainingStep.unscale(self.step, self._optimizers_of(unit), self._scaler())
            self._unscaled_first = True
            return
        scale = float(self.scaler.get_scale())
        for parameter, gradient in zip(parameters, held, strict=True):
            parameter.grad.copy_(gradient)
        super()._clip(unit)
        for parameter in parameters:
            parameter.grad.div_(scale)

    def _reduce(self, unit: Unit) -> None:
        if self.reduction is not None:
            self.reduction.look(self.model)
        super()._reduce(unit)
        if self.reduction is not None:
            self.reduction.apply(self.model, self.scaler)

    def _gradient_unit(self, unit: Unit, scaled: bool) -> Unit:
        put_in = self.reduction is not None and self.reduction.put_in
        if (put_in or self.reduces) and not scaled:
            return unit  # what the gate sees is the reduction's work
        return super()._gradient_unit(unit, scaled)

    def _clip(self, unit: Unit) -> None:
        swapped = self._conditions.clip_before_unscale
        exchanged = swapped and swapped != self._recorded.clip_before_unscale
        if not exchanged or self._unscaled_first:
            super()._clip(unit)


def autocast_now(device_type: str) -> str:
    """Read back autocast: ``off`` or the name of its dtype."""
    if not torch.is_autocast_enabled(device_type):
        return "off"
    return str(torch.get_autocast_dtype(device_type)).removeprefix("torch.")
