"""State of a model before a step: tensors, plain attributes, modes, sharing.

Parameters and buffers are not all a model holds: modules keep tensors and counters as plain
attributes, and forward may read any of them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard

import numpy as np
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from workbench.step.shards import Shard

TensorKind = Literal["parameter", "buffer", "buffer_nonpersistent", "attribute"]

INTERNAL = frozenset(nn.Module().__dict__) | {
    "_is_full_backward_hook",
    "_compiled_call_impl",
    "_is_hf_initialized",
    "_flat_weights",
    "_flat_weight_refs",
    "_all_weights",
    "_fsdp_state",
    "_is_fsdp_managed_module",
}
"""Attributes that torch, a wrapper or a library keeps in a module; they are no state of a step."""
MUTABLE = (list, dict, deque, np.ndarray)


@dataclass(frozen=True)
class TensorInfo:
    """What is known of one tensor besides its values.

    Attributes:
        kind: Where the module holds it.
        how: How its value from before the step was kept.
        requires_grad: Whether autograd tracks it.
        device: Type of its device when it was recorded.
    """

    kind: TensorKind
    how: str
    requires_grad: bool
    device: str


@dataclass
class ModelState:
    """A model's state, ready to be stored or restored.

    Attributes:
        tensors: By full name; names that share a storage hold views of one storage.
        info: What is known of each tensor.
        ties: Groups of names that are one and the same parameter or buffer.
        modules: By path: ``type``, ``training``, ``attributes`` (plain values) and, where the
            module has them, ``extra_state`` and ``hooks`` (names of functions).
        missing: What could not be kept: name and why.
        shards: Where a tensor that is one rank's part belongs in its whole.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    info: dict[str, TensorInfo] = field(default_factory=dict)
    ties: list[list[str]] = field(default_factory=list)
    modules: dict[str, dict[str, Any]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    shards: dict[str, Shard] = field(default_factory=dict)

    def assumed(self) -> list[str]:
        """Names of tensors that were read only when the step had tripped."""
        return [name for name, info in self.info.items() if info.how == "assumed"]


def is_there(t: Tensor | None) -> TypeGuard[Tensor]:
    """Whether a slot holds a tensor that has values; a lazy one has none."""
    return t is not None and not is_lazy(t)
