"""State of a model before a step: tensors, plain attributes, modes, sharing.

Parameters and buffers are not all a model holds: modules keep tensors and counters as plain
attributes, and forward may read any of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from workbench.numerics.counts import count
from workbench.numerics.digests import mask_digest
from workbench.step.names import join, walk
from workbench.step.shards import Shard, shard_of
from workbench.step.snapshots import (
    SCALARS,
    Kept,
    keep,
    plain,
    shared_storages,
    snapshot_tree,
)

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
_MUTABLE = (list, dict, deque, np.ndarray)
_SCALARS = frozenset(SCALARS)
_NO_EXTRA_STATE = nn.Module.get_extra_state


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
            module has it, ``extra_state``.
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


@dataclass
class _Seen:
    """One module as it was; what is expensive is worked out later, in ``freeze``."""

    path: str
    module: nn.Module
    attributes: dict[str, Any]
    parameters: dict[str, nn.Parameter | None]
    buffers: dict[str, Tensor | None]
    training: bool
    extra_state: Any


class ModelSnapshot:
    """A cheap snapshot of a model, turned into a ``ModelState`` only when it is needed.

    Args:
        model: The model, possibly wrapped.
        keeper: How a tensor is kept.
    """

    def __init__(self, model: nn.Module, keeper: Callable[[Tensor], Kept] = keep) -> None:
        self._keeper = keeper
        self._kept: dict[int, Kept] = {}
        self._requires_grad: dict[int, bool] = {}
        self._failed: dict[int, str] = {}
        with torch.no_grad():
            self._seen = [self._look(path, module) for path, module in walk(model)]

    def _look(self, path: str, module: nn.Module) -> _Seen:
        attributes = module.__dict__.copy()
        for name in INTERNAL & attributes.keys():
            del attributes[name]
        for name, value in attributes.items():
            kind = type(value)
            if kind in _SCALARS or (kind is tuple and _SCALARS.issuperset(map(type, value))):
                continue
            if kind in _MUTABLE or isinstance(value, tuple):
                attributes[name] = snapshot_tree(value) if plain(value) else None
            elif isinstance(value, Tensor):
                self._keep(value)
        if not module._parameters and not module._buffers:
            return _Seen(path, module, attributes, {}, {}, module.training, _extra_state(module))
        parameters = module._parameters.copy()
        buffers = module._buffers.copy()
        for tensor in (*parameters.values(), *buffers.values()):
            if tensor is not None and is_lazy(tensor):
                self._failed[id(tensor)] = (
                    "it was lazy: it had no values before this step's forward"
                )
            elif tensor is not None:
                self._keep(tensor)
        return _Seen(
            path, module, attributes, parameters, buffers, module.training, _extra_state(module)
        )

    def _keep(self, t: Tensor) -> None:
        key = id(t)
        if key in self._kept or key in self._failed:
            return
        try:
            self._kept[key] = self._keeper(t)
        except (RuntimeError, NotImplementedError, ValueError) as error:
            self._failed[key] = f"a tensor of type {type(t).__name__} cannot be copied: {error}"
        self._requires_grad[key] = t.requires_grad

    def keep_buffers(self) -> None:
        """Keep all buffers again, as they are now."""
        buffers = [b for seen in self._seen for b in seen.buffers.values() if b is not None]
        with torch.no_grad():
            for buffer in buffers:
                self._kept.pop(id(buffer), None)
                self._keep(buffer)

    def parameter_names(self) -> dict[int, str]:
        """The names of the parameters that were there, by ``id``; a tied one's first name."""
        found: dict[int, str] = {}
        for seen in self._seen:
            for name, parameter in seen.parameters.items():
                if parameter is not None and not is_lazy(parameter):
                    found.setdefault(id(parameter), join(seen.path, name))
        return found

    def buffer_masks(self) -> dict[str, str]:
        """Digest the non-finite set of every buffer that had one, by sink name."""
        found: dict[str, str] = {}
        for seen in self._seen:
            for name, buffer in seen.buffers.items():
                kept = None if buffer is None else self._kept.get(id(buffer))
                if kept is not None and count(kept.tensor).nonfinite:
                    found[f"buffer:{join(seen.path, name)}"] = mask_digest(kept.tensor)
        return found

    def only_buffers(self) -> ModelSnapshot:
        """The same snapshot without anything but buffers: what an update does not write."""
        light = object.__new__(ModelSnapshot)
        light._seen = self._seen
        buffers = {id(b) for seen in self._seen for b in seen.buffers.values() if b is not None}
        light._kept = {key: kept for key, kept in self._kept.items() if key in buffers}
        light._requires_grad, light._failed = {}, {}
        return light

    def freeze(self) -> ModelState:
        """Turn the snapshot into a state that can be stored."""
        state = ModelState()
        kept: dict[str, Kept] = {}
        names: dict[int, list[str]] = {}
        for seen in self._seen:
            for name, kind, tensor in _tensors_of(seen):
                full = join(seen.path, name)
                item = self._kept.get(id(tensor))
                if item is None:
                    state.missing[full] = self._failed.get(id(tensor), "not seen")
                    continue
                try:
                    shard = shard_of(tensor)
                except ValueError as error:
                    state.missing[full] = str(error)
                    continue
                if shard is not None:
                    state.shards[full] = shard
                kept[full] = item
                names.setdefault(id(tensor), []).append(full)
                state.info[full] = TensorInfo(
                    kind, item.how, self._requires_grad[id(tensor)], item.tensor.device.type
                )
            state.modules[seen.path] = _describe(seen)
        state.tensors = shared_storages(kept)
        state.ties = [group for group in names.values() if len(group) > 1]
        return state


def _tensors_of(seen: _Seen) -> list[tuple[str, TensorKind, Tensor]]:
    found: list[tuple[str, TensorKind, Tensor]] = [
        (name, "parameter", p) for name, p in seen.parameters.items() if is_there(p)
    ]
    transient = seen.module._non_persistent_buffers_set
    found += [
        (name, "buffer_nonpersistent" if name in transient else "buffer", b)
        for name, b in seen.buffers.items()
        if is_there(b)
    ]
    found += [
        (name, "attribute", value)
        for name, value in seen.attributes.items()
        if isinstance(value, Tensor)
    ]
    return found


def is_there(t: Tensor | None) -> TypeGuard[Tensor]:
    """Whether a slot holds a tensor that has values; a lazy one has none."""
    return t is not None and not is_lazy(t)


def _describe(seen: _Seen) -> dict[str, Any]:
    attributes = {
        name: value
        for name, value in seen.attributes.items()
        if not isinstance(value, Tensor) and _stored(value)
    }
    kind = type(seen.module)
    described: dict[str, Any] = {
        "type": f"{kind.__module__}.{kind.__qualname__}",
        "training": seen.training,
        "attributes": attributes,
    }
    if seen.extra_state is not None:
        described["extra_state"] = seen.extra_state
    return described


def _stored(value: Any) -> bool:
    if type(value) in SCALARS:
        return True
    return isinstance(value, (*_MUTABLE, tuple, np.generic)) and plain(value)


def _extra_state(module: nn.Module) -> Any:
    if type(module).get_extra_state is _NO_EXTRA_STATE:
        return None
    value = module.get_extra_state()
    return snapshot_tree(value) if plain(value) else None
