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
        if swapped:
            super()._clip(unit)
        # the user's own method may be what leaves the gradients scaled
        TrainingStep.unscale(self.step, self._optimizers_of(unit), self._scaler())

    def _clip(self, unit: Unit) -> None:
        swapped = self._conditions.clip_before_unscale
        if not swapped or swapped == self._recorded.clip_before_unscale:
            super()._clip(unit)


def autocast_now(device_type: str) -> str:
    """Read back autocast: ``off`` or the name of its dtype."""
    if not torch.is_autocast_enabled(device_type):
        return "off"
    return str(torch.get_autocast_dtype(device_type)).removeprefix("torch.")
