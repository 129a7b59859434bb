"""The loss of every sample of a batch, by running forward and loss with one sample at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from workbench.errors import WorkbenchError
from workbench.replay.session import Session
from workbench.step.snapshots import copy_tree
from workbench.step.values import scalar

if TYPE_CHECKING:
    from workbench.evidence import Conditions
    from workbench.replay.source import Source

MOST_SAMPLES = 64


@dataclass(frozen=True)
class SampleLosses:
    """Losses of single samples.

    Attributes:
        losses: Loss by position in the batch, for the positions that were run.
        of: Number of samples in the batch.
    """

    losses: dict[int, float]
    of: int


def sample_losses(source: Source, conditions: Conditions) -> SampleLosses | None:
    """Run forward and loss for every sample alone, at most the first 64.

    Args:
        source: What to replay.
        conditions: What to run under.

    Returns:
        The losses, or None where a sample alone cannot be run (batch statistics, fixed sizes) or
        the batch has no leading dimension that its tensors share.
    """
    size = batch_size(source.batches)
    if size < 2:
        return None
    losses: dict[int, float] = {}
    for index in range(min(size, MOST_SAMPLES)):
        loss = _one(source, conditions.replace(keep_samples=(index,)))
        if loss is None:
            return None
        losses[index] = loss
    return SampleLosses(losses, size)


def batch_size(batches: Sequence[Any]) -> int:
    """The leading dimension that most tensors of the first micro-batch share; 0 without one."""
    sizes: list[int] = []

    def note(t: Tensor) -> Tensor:
        if t.dim():
            sizes.append(int(t.shape[0]))
        return t

    copy_tree(list(batches[:1]), note)
    return max(set(sizes), key=lambda value: (sizes.count(value), value)) if sizes else 0


def _one(source: Source, conditions: Conditions) -> float | None:
    try:
        session = Session(source, conditions)
    except (WorkbenchError, RuntimeError, TypeError, ValueError, IndexError):
        return None
    runner = session.runner
    while (unit := runner.next_unit) is not None and unit.stage in ("input", "forward", "loss"):
        if session.advance().exception is not None:
            return None
    value = scalar(session.observed.loss)
    return None if value is None else float(value)
