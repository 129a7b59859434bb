"""A snapshot of a model that costs little: what is expensive is worked out only when it is needed.

A model changes little between two steps besides the values of its tensors. So what was seen of a
module is kept and used again as long as the module holds the same objects; that is told by
comparing identities of all of them in one go, a tenth of the cost of looking at every module.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import is_, methodcaller
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from workbench.numerics.counts import count
from workbench.numerics.digests import mask_digest
from workbench.step.bad_sets import BadSet
from workbench.step.held import Held, hold
from workbench.step.hooks import hooks_of
from workbench.step.looks import Look, Seen, see
from workbench.step.model_state import (
    MUTABLE,
    ModelState,
    TensorInfo,
    TensorKind,
    is_there,
)
from workbench.step.names import join, walk
from workbench.step.shards import shard_of
from workbench.step.snapshots import (
    SCALARS,
    Kept,
    plain,
    shared_storages,
)

_VALUES = methodcaller("values")


class PreparedModel:
    """What a model held when it was looked at last.

    Keep one as long as a model is recorded: a snapshot made with it looks only at what changed.

    Attributes:
        seen: What was seen of every module.
        tensors: Every tensor of theirs that has values, once.
        parameters: Those of them that are parameters, as ``named_parameters`` orders them.
        buffers: Where in ``tensors`` the buffers are.
        lazy: Those that had no values yet.
    """

    def __init__(self) -> None:
        self._model: nn.Module | None = None
        self._modules: list[nn.Module] = []
        self._one_by_one: list[Look] = []
        self._all: Look | None = None
        self.seen: list[Seen] = []
        self.tensors: list[Tensor] = []
        self.parameters: list[nn.Parameter] = []
        self.buffers: list[int] = []
        self.lazy: list[Tensor] = []
        self._may_compare = False
        self._slots: list[Any] = []
        self._in_slots: list[Any] = []
        self._buffer_slots: list[Any] = []

    def look(self, model: nn.Module) -> None:
        """Look at a model, again."""
        known = self._all
        if (
            self._model is model
            and known is not None
            and self._may_compare
            and not known.changes_unseen
            and known.still_holds()
        ):
            return
        self._model = model
        walked = walk(model)
        modules = [module for _, module in walked]
        same_modules = len(modules) == len(self._modules) and all(map(is_, modules, self._modules))
        if self._all is None or not same_modules or self.lazy:
            self._modules = modules
            self.seen = [see(path, module) for path, module in walked]
            self._one_by_one = [Look([m], [one]) for m, one in zip(modules, self.seen, strict=True)]
            self._note()
        else:
            self._look_at_changed(walked)

    def _look_at_changed(self, walked: Sequence[tuple[str, nn.Module]]) -> None:
        self.seen = self.seen.copy()  # an earlier snapshot may still have the list
        for index, (path, module) in enumerate(walked):
            look = self._one_by_one[index]
            if look.changes_unseen or not look.still_holds():
                self.seen[index] = see(path, module)
                self._one_by_one[index] = Look([module], [self.seen[index]])
        self._note()

    def _note(self) -> None:
        """Note all tensors, and what all modules hold."""
        self._all = Look(self._modules, self.seen)
        found: dict[int, Tensor] = {}
        lazy: dict[int, Tensor] = {}
        for seen in self.seen:
            for tensor in seen.tensors():
                (lazy if is_lazy(tensor) else found)[id(tensor)] = tensor
        self.tensors, self.lazy = list(found.values()), list(lazy.values())
        parameters: list[nn.Parameter] = [
            p
            for seen in self.seen
            for p in seen.parameters.values()
            if p is not None and not is_lazy(p)
        ]
        # of a wrapper, which is no module of the user's, it is not known what it holds
        every = 0 if self._model is None else sum(1 for _ in self._model.modules())
        self._may_compare = every == len(self._modules) and not lazy
        self.parameters = [*{id(p): p for p in parameters}.values()]
        self._slots = [*map(_VALUES, (seen.module._parameters for seen in self.seen))]
        self._buffer_slots = [*map(_VALUES, (seen.module._buffers for seen in self.seen))]
        self._in_slots = list(chain.from_iterable(self._slots))
        buffers = {id(b) for seen in self.seen for b in seen.buffers.values() if b is not None}
        self.buffers = [i for i, tensor in enumerate(self.tensors) if id(tensor) in buffers]

    def buffers_now(self) -> list[Tensor]:
        """The buffers that the modules hold now: forward may have put others in their places."""
        return [b for view in self._buffer_slots for b in view if b is not None]

    def has_same_parameters(self) -> bool:
        """Whether the modules still hold the parameters that they held when looked at."""
        now = list(chain.from_iterable(self._slots))
        return len(now) == len(self._in_slots) and all(map(is_, now, self._in_slots))


class ModelSnapshot:
    """A cheap snapshot of a model, turned into a ``ModelState`` only when it is needed.

    Args:
        model: The model, possibly wrapped.
        prepared: What an earlier snapshot of the same model has seen; None looks at everything.
    """

    def __init__(self, model: nn.Module, prepared: PreparedModel | None = None) -> None:
        prepared = PreparedModel() if prepared is None else prepared
        with torch.no_grad():
            prepared.look(model)
            self._take(prepared, hold(prepared.tensors))

    @classmethod
    def of(cls, prepared: PreparedModel, held: Held) -> ModelSnapshot:
        """The snapshot of a model that was looked at and held already."""
        snapshot = object.__new__(cls)
        snapshot._take(prepared, held)
        return snapshot

    @classmethod
    def of_buffers(cls, prepared: PreparedModel, held: Held) -> ModelSnapshot:
        """What ``only_buffers`` gives, of buffers that were held already."""
        snapshot = object.__new__(cls)
        snapshot._held = held
        snapshot._seen = prepared.seen
        snapshot._buffers = list(range(len(held.tensors)))
        snapshot._lazy = []
        return snapshot

    def _take(self, prepared: PreparedModel, held: Held) -> None:
        self._held = held
        self._seen = prepared.seen
        self._buffers = prepared.buffers
        self._lazy = prepared.lazy

    def keep_buffers(self) -> None:
        """Keep all buffers again, as they are now."""
        with torch.no_grad():
            self._held.hold_again(self._buffers)

    @property
    def held(self) -> Held:
        """What is held of its tensors."""
        return self._held

    def parameter_names(self) -> dict[int, str]:
        """The names of the parameters that were there, by ``id``; a tied one's first name."""
        found: dict[int, str] = {}
        for seen in self._seen:
            for name, parameter in seen.parameters.items():
                if parameter is not None and not is_lazy(parameter):
                    found.setdefault(id(parameter), join(seen.path, name))
        return found

    def buffer_masks(self) -> dict[str, BadSet]:
        """The non-finite set of every buffer that had one, by sink name."""
        found: dict[str, BadSet] = {}
        kept_by_id = self._held.kept()
        for seen in self._seen:
            for name, buffer in seen.buffers.items():
                kept = None if buffer is None else kept_by_id.get(id(buffer))
                counts = None if kept is None else count(kept.tensor)
                if kept is not None and counts is not None and counts.nonfinite:
                    bad = BadSet(counts, mask_digest(kept.tensor))
                    found[f"buffer:{join(seen.path, name)}"] = bad
        return found

    def only_buffers(self) -> ModelSnapshot:
        """The same snapshot without anything but buffers: what an update does not write."""
        light = object.__new__(ModelSnapshot)
        light._seen = self._seen
        light._held = self._held.part(self._buffers)
        light._buffers = list(range(len(self._buffers)))
        light._lazy = []
        return light

    def freeze(self) -> ModelState:
        """Turn the snapshot into a state that can be stored."""
        state = ModelState()
        kept: dict[str, Kept] = {}
        names: dict[int, list[str]] = {}
        kept_by_id, requires_grad = self._held.kept(), self._held.requires_grad()
        failed = self._held.failed | {id(t): _LAZY for t in self._lazy}
        for seen in self._seen:
            for name, kind, tensor in _tensors_of(seen):
                full = join(seen.path, name)
                item = kept_by_id.get(id(tensor))
                if item is None:
                    state.missing[full] = failed.get(id(tensor), "not seen")
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
                device = item.device or item.tensor.device.type
                state.info[full] = TensorInfo(kind, item.how, requires_grad[id(tensor)], device)
            state.modules[seen.path] = _describe(seen)
        state.tensors = shared_storages(kept)
        state.ties = [group for group in names.values() if len(group) > 1]
        return state


_LAZY = "it was lazy: it had no values before this step's forward"


def _tensors_of(seen: Seen) -> list[tuple[str, TensorKind, Tensor]]:
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


def _describe(seen: Seen) -> dict[str, Any]:
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
    if hooks := hooks_of(seen.module):
        described["hooks"] = hooks
    if seen.extra_state is not None:
        described["extra_state"] = seen.extra_state
    return described


def _stored(value: Any) -> bool:
    if type(value) in SCALARS:
        return True
    return isinstance(value, (*MUTABLE, tuple, np.generic)) and plain(value)
