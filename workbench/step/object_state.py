"""State of plain objects: loss scalers, schedulers, custom optimizers' own attributes.

A home-made scaler has no ``state_dict``; torch's makes its scale tensor only when it is first used.
So what is kept is the object's own simple attributes, and its ``state_dict`` where it has one.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import eq, is_
from typing import Any

import numpy as np
from torch import Tensor

from workbench.step.snapshots import SCALARS, copy_tree, plain, snapshot_tree

_SCALARS = frozenset(SCALARS)


@dataclass
class ObjectState:
    """State of one plain object.

    Attributes:
        type: Qualified name of its class.
        attributes: Its simple attributes: scalars, tensors, and plain nests of them.
        state_dict: What its ``state_dict()`` gave, as far as it is plain; None without one.
        left_out: Names of entries that could not be kept.
    """

    type: str
    attributes: dict[str, Any] = field(default_factory=dict)
    state_dict: dict[str, Any] | None = None
    left_out: list[str] = field(default_factory=list)


def type_name(value: object) -> str:
    """Qualified name of an object's class."""
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def simple_attributes(value: object, skip: Iterable[str] = ()) -> tuple[dict[str, Any], list[str]]:
    """Split an object's attributes into a snapshot of the plain ones and names of the others."""
    own = getattr(value, "__dict__", None)
    if own is None:
        names = [n for kind in type(value).__mro__ for n in getattr(kind, "__slots__", ())]
        own = {name: getattr(value, name) for name in names if hasattr(value, name)}
    skipped = frozenset(skip)
    kept: dict[str, Any] = {}
    left: list[str] = []
    for name, item in own.items():
        if name in skipped:
            continue
        if plain(item):
            kept[name] = snapshot_tree(item)
        elif not callable(item):
            left.append(name)
    return kept, left


class KnownAttributes:
    """The simple attributes of one object, split again only once one of them changed.

    Args:
        skip: Attributes that are left out.
    """

    def __init__(self, skip: Iterable[str] = ()) -> None:
        self._skip = tuple(skip)
        self._own: dict[str, Any] = {}
        self._settled = False
        self._kept: dict[str, Any] = {}

    @property
    def own(self) -> dict[str, Any]:
        """The attributes when they were split last: the same dictionary while nothing changes."""
        return self._own

    def of(self, value: object) -> dict[str, Any]:
        """What ``simple_attributes`` keeps; the dictionary may be given out several times."""
        own = getattr(value, "__dict__", None)
        if own is None:
            return simple_attributes(value, self._skip)[0]
        own = {**own}
        for name in self._skip:
            own.pop(name, None)
        if not (
            self._settled
            and len(own) == len(self._own)
            and all(map(is_, own.values(), self._own.values()))
            and all(map(eq, own, self._own))
        ):
            self._own = own
            self._settled = not any(map(_may_change, own.values()))
            self._kept = simple_attributes(value, self._skip)[0]
        return self._kept


def _may_change(value: Any) -> bool:
    """Whether what is kept of a value may change while it stays the same object."""
    if type(value) is tuple:
        return not _SCALARS.issuperset(map(type, value))
    return isinstance(value, (Tensor, np.ndarray, list, tuple, dict, deque))


def twin_of(value: Any) -> Any:
    """An object of the same class that stays as an object is now: ``capture_object`` of it later.

    Only for objects whose attributes are scalars, tensors and containers of them, beside what never
    changes: it costs a fraction of capturing at every step what only few steps need.

    Args:
        value: The object; one with a ``__dict__``.
    """
    twin = object.__new__(type(value))
    twin.__dict__.update({name: _as_now(item) for name, item in value.__dict__.items()})
    return twin


def _as_now(item: Any) -> Any:
    kind = type(item)
    if kind in _SCALARS:
        return item
    if kind is Tensor:
        return item.detach().clone()
    if kind is list:
        return [_as_now(one) for one in item]
    return item.copy() if isinstance(item, dict) else item


def capture_object(value: Any, use_state_dict: bool = True) -> ObjectState:
    """Keep the state of a scaler or a scheduler.

    Args:
        value: The object.
        use_state_dict: Whether to ask its ``state_dict`` too.
    """
    attributes, left = simple_attributes(value, skip=("optimizer",))
    state = ObjectState(type_name(value), attributes, None, left)
    ask = getattr(value, "state_dict", None)
    if use_state_dict and callable(ask):
        given = ask()
        if isinstance(given, Mapping):
            state.state_dict = {k: snapshot_tree(v) for k, v in given.items() if plain(v)}
            state.left_out += [str(k) for k, v in given.items() if not plain(v)]
    return state


def restore_object(
    state: ObjectState, value: Any, place: Callable[[Tensor], Tensor] | None = None
) -> None:
    """Put a recorded state into a freshly built object of the same class.

    Only attributes that the object has, or that do not shadow anything of its class, are set.

    Args:
        state: The recorded state.
        value: The fresh object.
        place: Gives a private copy of a recorded tensor; a plain copy when left out.
    """
    put = place or (lambda t: t.detach().clone())
    load = getattr(value, "load_state_dict", None)
    if state.state_dict and callable(load):
        load(copy.deepcopy(copy_tree(state.state_dict, put)))
    own = getattr(value, "__dict__", {})
    for name, item in state.attributes.items():
        if name.startswith("__") or (name not in own and hasattr(type(value), name)):
            continue
        current = own.get(name)
        if current is None or plain(current):
            setattr(value, name, copy_tree(item, put))
