"""What a fault of the drill is: where it is put, and what has to catch it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from workbench.step.domains import batch_fields

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from workbench.record.policy import Policy


@dataclass
class Put:
    """The parts of a running training that a fault may be put into.

    Attributes:
        model: The model.
        optimizers: The optimizers.
        scaler: The loss scaler, or None.
        step: The training step, or None for a loop that has none.
        at: The number of the step the fault belongs to.
        recorder: The recorder of the run.
        logger: The object and the name of the attribute that the loop logs with; None where the
            step's own ``log`` does it.
    """

    model: nn.Module
    optimizers: Sequence[Optimizer]
    scaler: Any
    step: Any
    at: int
    recorder: Any = None
    logger: tuple[Any, str] | None = None


class Fault:
    """One fault.

    Attributes:
        name: Its name.
        what: What is done, in words.
        boundaries: The boundaries that may catch it; any of them will do.
        several_ranks: Whether it takes several ranks.
    """

    name: ClassVar[str]
    what: ClassVar[str]
    boundaries: ClassVar[tuple[str, ...]]
    several_ranks: ClassVar[bool] = False

    def not_applicable(self, put: Put, batch: Any) -> str | None:
        """Why this training cannot have the fault, or None.

        Args:
            put: The training.
            batch: A batch of it.
        """
        del put, batch
        return None

    def policy(self, policy: Policy) -> Policy:
        """The policy of the run."""
        return policy

    def batch(self, put: Put, step: int, batch: Any) -> Any:
        """The batch of a step; spoiled by faults of the data."""
        del put, step
        return batch

    def during(self, put: Put, step: int) -> AbstractContextManager[Any]:
        """What surrounds a step."""
        del put, step
        return nullcontext()


def spoiled(batch: Any, name: str, value: float) -> Any:
    """A copy of a batch in which one element of a field has another value.

    Args:
        batch: The batch; any pytree of dicts, lists and tuples.
        name: The field's path.
        value: The value of its first element.
    """
    return _replace(batch, "", name, value)


def _replace(tree: Any, path: str, name: str, value: float) -> Any:
    if isinstance(tree, Tensor):
        if (path or "batch") != name:
            return tree
        bad = tree.detach().clone()
        if bad.numel():
            bad.reshape(-1)[0] = value
        return bad
    inner = f"{path}." if path else ""
    if isinstance(tree, dict):
        return type(tree)({k: _replace(v, f"{inner}{k}", name, value) for k, v in tree.items()})
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        values = (
            _replace(v, f"{inner}{k}", name, value) for k, v in zip(tree._fields, tree, strict=True)
        )
        return type(tree)(*values)
    if isinstance(tree, list | tuple):
        return type(tree)(_replace(v, f"{inner}{i}", name, value) for i, v in enumerate(tree))
    return tree


def float_field(batch: Any) -> str | None:
    """The first field of floats, by path."""
    return next((n for n, t in batch_fields(batch) if t.is_floating_point() and t.numel()), None)


def largest_parameter(put: Put) -> Tensor:
    """The largest parameter some optimizer updates."""
    held: list[Tensor] = [
        p for opt in put.optimizers for group in opt.param_groups for p in group["params"]
    ]
    return max(held, key=Tensor.numel)


def spoil(tensor: Tensor, value: float) -> None:
    """Write a value into a tensor's first element."""
    with torch.no_grad():
        tensor.reshape(-1)[:1].fill_(value) if tensor.is_contiguous() else tensor.fill_(value)
