"""How much of parameters and optimizer state is looked at after an update.

Reading all of them after every update would cost several times what the gradient gate costs. So a
small model is read in full every time; of a large one each step reads a share in turn, and all of
it every ``deep_scan_every`` steps and whenever something hints at trouble.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from workbench.numerics.finite_test import FiniteTest
from workbench.record.settings import learning_rates
from workbench.step.gates import check_parameters, optimizer_state_tensors
from workbench.step.names import named_parameters
from workbench.step.runner import StepValues
from workbench.step.values import scalar

if TYPE_CHECKING:
    from torch.optim import Optimizer

SMALL = 1 << 15
"""Elements of parameters up to which everything is read after every update."""
_TURN = 1 << 14
_JUMP = 50.0
_HUGE = 1e15


class UpdateScan:
    """Chooses what the after-update gate reads.

    Args:
        model: The model.
        every: ``Policy.deep_scan_every``.

    Attributes:
        hinted: Whether the last update looked at hinted at trouble: its gradient norm or loss
            jumped, or a learning rate was non-finite.
        all_finite: Looks at the same tensors of a small model after every update.
    """

    def __init__(self, model: nn.Module, every: int) -> None:
        self._every = every
        self._model = model
        self._small: bool | None = None
        self._turn = 0
        self._last_norm: float | None = None
        self._last_loss: float | None = None
        self.hinted = False
        self.all_finite = FiniteTest()

    def in_full(
        self,
        step: int,
        values: StepValues,
        loss: Tensor | None,
        optimizers: Sequence[Optimizer],
    ) -> bool:
        """Whether this step's update is looked at in full.

        Args:
            step: Number of the step.
            values: What the step computed.
            loss: Its total loss.
            optimizers: The optimizers; a non-finite learning rate is a hint.
        """
        hint = self.hinted = self._hint(values, loss, optimizers)
        if self._small is None:
            self._small = _is_small(self._model)
        due = self._every > 0 and step % self._every == 0
        return bool(self._small) or hint or due

    @property
    def is_small(self) -> bool | None:
        """Whether everything is read after every update; None while that is not known."""
        return self._small

    def note_calm(
        self, norm: float | None, loss: float, rates: Sequence[Sequence[float | None]]
    ) -> bool:
        """Take in a step, unless it hints at trouble; whether it does not.

        Args:
            norm: Its gradient norm.
            loss: Its loss.
            rates: Its learning rates per optimizer.
        """
        size = abs(loss)
        if _jumped(self._last_norm, norm) or _jumped(self._last_loss, size):
            return False
        for group in rates:
            for rate in group:
                if rate is not None and not math.isfinite(rate):
                    return False
        self._last_norm, self._last_loss, self.hinted = norm, size, False
        return True

    def _hint(
        self, values: StepValues, loss: Tensor | None, optimizers: Sequence[Optimizer]
    ) -> bool:
        norm = values.grad_norm if values.grad_norm is not None else values.gate_norm
        now, size = scalar(norm), scalar(loss)
        size = None if size is None else abs(size)
        jumped = _jumped(self._last_norm, now) or _jumped(self._last_loss, size)
        self._last_norm, self._last_loss = now, size
        rates = [rate for group in learning_rates(optimizers) for rate in group if rate is not None]
        return jumped or not all(map(math.isfinite, rates))

    def share(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> list[Tensor]:
        """The next share of parameters and optimizer state."""
        tensors: list[Tensor] = [parameter for _, parameter in named_parameters(model)]
        tensors += [t for _, t in optimizer_state_tensors(model, optimizers) if t.dim()]
        chosen, self._turn = share_of(tensors, self._turn, _TURN)
        return chosen


def _jumped(before: float | None, now: float | None) -> bool:
    if now is None or before is None:
        return now is not None and now > _HUGE
    return now > _HUGE or not now <= _JUMP * before + 1.0


def share_of(tensors: Sequence[Tensor], start: int, most: int) -> tuple[list[Tensor], int]:
    """Take the next tensors in turn, at least one, up to so many elements.

    Args:
        tensors: All of them, in a stable order.
        start: Where the last turn ended.
        most: Most elements of a turn.

    Returns:
        The tensors, and where the next turn starts.
    """
    chosen: list[Tensor] = []
    elements = 0
    for offset in range(len(tensors)):
        tensor = tensors[(start + offset) % len(tensors)]
        if chosen and elements + tensor.numel() > most:
            break
        chosen.append(tensor)
        elements += tensor.numel()
    return chosen, (start + len(chosen)) % max(1, len(tensors))


def _is_small(model: nn.Module) -> bool | None:
    """Whether everything is read each time; None while lazy parameters have no size yet."""
    parameters = list(model.parameters())
    if any(is_lazy(parameter) for parameter in parameters):
        return None
    return sum(parameter.numel() for parameter in parameters) <= SMALL


def held_parameters(model: nn.Module) -> dict[str, str]:
    """Which elements are -Inf in the parameters that hold nothing else non-finite.

    That is a mask, as in a learned attention bias (DESIGN section 7, rule 3), as long as no
    element joins them.

    Returns:
        The mask's digest by sink name.
    """
    if any(is_lazy(parameter) for _, parameter in named_parameters(model)):
        return {}
    bad = check_parameters(model)
    return {b.name: b.mask for b in bad if not b.counts.nan and not b.counts.pos_inf}
