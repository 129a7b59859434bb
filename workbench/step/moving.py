"""Moves what a snapshot holds into host memory: which tensors, and where the copies go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from workbench.step.host_copies import Copies
from workbench.step.model_snapshot import ModelSnapshot
from workbench.step.optimizer_state import OptimizerState
from workbench.step.snapshots import copy_tree

if TYPE_CHECKING:
    from torch.optim import Optimizer

Copier = Callable[[Sequence[Tensor]], tuple[list[Tensor | None], Copies] | None]
"""Begins to copy tensors into host memory: the copy of each or None, and all that were begun."""


def move_state(
    model: ModelSnapshot,
    optimizers: Sequence[Optimizer],
    states: Sequence[OptimizerState],
    copy: Copier,
) -> list[Copies]:
    """Move what an update will write: parameters that optimizers hold, and optimizer state.

    All else stays a copy-on-write clone: frozen parameters and constant buffers are never written,
    so that each is in memory once however many snapshots hold it.

    Args:
        model: The snapshot of the model; it holds the copies afterwards.
        optimizers: The optimizers.
        states: The snapshots of their states; they hold the copies afterwards.
        copy: Begins to copy.
    """
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    clones = model.held.clones_of({id(p) for group in groups for p in group["params"]})
    slots = [
        (entries, key)
        for state in states
        for entries in state.state.values()
        for key, value in entries.items()
        if isinstance(value, Tensor)
    ]
    begun = copy([*clones.values(), *(entries[key] for entries, key in slots)])
    if begun is None:
        return []
    copied, copies = begun
    of_model = zip(clones, copied[: len(clones)], strict=True)
    model.held.replace({place: made for place, made in of_model if made is not None})
    for (entries, key), made in zip(slots, copied[len(clones) :], strict=True):
        if made is not None:
            entries[key] = made
    return [copies]


def move_batches(batches: list[Any], copy: Copier) -> tuple[list[Any], list[Copies]]:
    """Move the tensors of batches that are not in host memory.

    Args:
        batches: Snapshots of the batches.
        copy: Begins to copy.

    Returns:
        The batches with the copies in their places, and the copies.
    """
    there: dict[int, Tensor] = {}

    def note(t: Tensor) -> None:
        if t.device.type != "cpu":
            there[id(t)] = t

    copy_tree(batches, note)
    begun = copy([*there.values()]) if there else None
    if begun is None:
        return batches, []
    copied, copies = begun
    made = {key: c for key, c in zip(there, copied, strict=True) if c is not None}
    return copy_tree(batches, lambda t: made.get(id(t), t)), [copies]
