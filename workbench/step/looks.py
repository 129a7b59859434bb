"""What the modules of a model hold, and whether they still hold the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, is_, methodcaller
from typing import Any

import numpy as np
from torch import Tensor, nn

from workbench.step.dict_versions import Versions, tell_writes
from workbench.step.model_state import INTERNAL, MUTABLE
from workbench.step.snapshots import LARGEST_CONTAINER, SCALARS, plain, snapshot_tree

_SCALARS = frozenset(SCALARS)
_NO_EXTRA_STATE = nn.Module.get_extra_state
_KEYS, _VALUES = methodcaller("keys"), methodcaller("values")
_DICT = attrgetter("__dict__")


@dataclass
class Seen:
    """One module as it was; nothing of it is changed afterwards, so several snapshots share it."""

    path: str
    module: nn.Module
    attributes: dict[str, Any]
    parameters: dict[str, nn.Parameter | None]
    buffers: dict[str, Tensor | None]
    training: bool
    extra_state: Any

    def tensors(self) -> Iterable[Tensor]:
        """Tensors among attributes, parameters and buffers; lazy ones too."""
        yield from (value for value in self.attributes.values() if isinstance(value, Tensor))
        yield from (value for value in self.parameters.values() if value is not None)
        yield from (value for value in self.buffers.values() if value is not None)


def see(path: str, module: nn.Module) -> Seen:
    """Look at a module: a copy of what is plain and may change, references to all else."""
    attributes = module.__dict__.copy()
    for name in INTERNAL & attributes.keys():
        del attributes[name]
    for name, value in attributes.items():
        kind = type(value)
        if kind in _SCALARS or (kind is tuple and _SCALARS.issuperset(map(type, value))):
            continue
        if kind in MUTABLE or isinstance(value, tuple):
            attributes[name] = snapshot_tree(value) if plain(value) else None
    return Seen(
        path,
        module,
        attributes,
        module._parameters.copy(),
        module._buffers.copy(),
        module.training,
        _extra_state(module),
    )


class Look:
    """What some modules held, in a form in which all of it is compared at once.

    Args:
        modules: The modules.
        seen: What was seen of them.
    """

    def __init__(self, modules: Sequence[nn.Module], seen: Sequence[Seen]) -> None:
        self._modules = modules
        self._versions: Versions | None = None
        self._dicts: list[Any] = [module.__dict__ for module in modules]
        named = [*self._dicts]
        flat: list[Any] = []
        for one in self._dicts:
            named += [one["_modules"], one["_parameters"], one["_buffers"]]
            for name, value in one.items():
                if type(value) in MUTABLE and name not in INTERNAL and _is_flat(value):
                    (named if type(value) is dict else flat).append(value)
        self._named = named
        self._flat = flat
        self._in_flat = list(chain.from_iterable(flat))
        self._views = [*map(_VALUES, named), *flat]
        self._values = list(chain.from_iterable(self._views))
        self._keys = list(chain.from_iterable(map(_KEYS, named)))
        self.changes_unseen = any(map(_changes_unseen, seen))
        self._note_versions()

    def _note_versions(self) -> None:
        self._versions = Versions(self._named) if tell_writes() else None

    def _is_unwritten(self) -> bool:
        """Whether no dictionary was written since, and no list holds anything else."""
        if self._versions is None or not self._versions.same():
            return False
        if self._flat:
            now = list(chain.from_iterable(self._flat))
            if len(now) != len(self._in_flat) or not all(map(is_, now, self._in_flat)):
                return False
        return all(map(is_, map(_DICT, self._modules), self._dicts))

    def still_holds(self) -> bool:
        """Whether the modules hold the same objects under the same names."""
        if self._is_unwritten():
            return True
        now = list(chain.from_iterable(self._views))
        same = (
            len(now) == len(self._values)
            and all(map(is_, now, self._values))
            and list(chain.from_iterable(map(_KEYS, self._named))) == self._keys
            and all(map(is_, map(_DICT, self._modules), self._dicts))
        )
        if same:  # written, and as it was again
            self._note_versions()
        return same


def _changes_unseen(seen: Seen) -> bool:
    """Whether a module's state may change although it holds the same objects."""
    if type(seen.module).get_extra_state is not _NO_EXTRA_STATE:
        return True
    return any(
        not (type(value) in MUTABLE and _is_flat(value))
        for name, value in seen.module.__dict__.items()
        if name not in INTERNAL
        and (type(value) in MUTABLE or isinstance(value, tuple))
        and not (type(value) is tuple and _SCALARS.issuperset(map(type, value)))
    )


def _is_flat(value: Any) -> bool:
    """Whether a container holds plain values alone, few enough to be compared one by one."""
    if type(value) is np.ndarray or len(value) > LARGEST_CONTAINER:
        return False
    return _SCALARS.issuperset(map(type, value.values() if type(value) is dict else value))


def _extra_state(module: nn.Module) -> Any:
    if type(module).get_extra_state is _NO_EXTRA_STATE:
        return None
    value = module.get_extra_state()
    return snapshot_tree(value) if plain(value) else None
