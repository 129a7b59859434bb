"""Names of modules, parameters and buffers as the user knows them, without the wrappers' parts.

DDP, ``torch.compile``, FSDP and checkpoint wrappers put a module of their own around the user's,
and with it a part of their own into every path. A user may have a submodule called ``module``
too, so wrappers are told by their class, not by the name.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from operator import attrgetter, is_, methodcaller
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from torch import Tensor, nn
from torch.nn.parameter import is_lazy

# Class name -> attribute that holds the wrapped module, with the package the class must come from.
_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "OptimizedModule": "_orig_mod",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "OffloadWrapper": "_checkpoint_wrapped_module",
}


def wrapped_attribute(module: nn.Module) -> str | None:
    """Return the attribute under which a wrapper holds the user's module; None when it is none."""
    for kind in type(module).__mro__:
        attribute = _WRAPPERS.get(kind.__name__)
        if attribute is not None and kind.__module__.startswith("torch."):
            return attribute
    return None


def inner_model(model: nn.Module) -> nn.Module:
    """Take off every wrapper around a model (FSDP2 has none: it changes the class in place)."""
    while (attribute := wrapped_attribute(model)) is not None:
        wrapped: nn.Module = model._modules[attribute]  # type: ignore[assignment]
        model = wrapped
    return model


def walk(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """List ``(path, module)`` in the order of ``named_modules``, wrappers left out.

    A module that is reachable by several paths is listed once, under the first. What was found is
    kept and given again as long as no module has gained, lost or exchanged a child.
    """
    return _structure(model).modules(model)


def _structure(model: nn.Module) -> _Structure:
    kept = _KEPT.get(model)
    if kept is None or not kept.children.still_hold(model):
        if len(_KEPT) >= _MOST:  # a hook of a parameter may keep its model alive
            _KEPT.clear()
        kept = _KEPT[model] = _Structure(model)
    return kept


Slot = Literal["_modules", "_parameters", "_buffers"]
_KEYS, _VALUES = methodcaller("keys"), methodcaller("values")


class Slots:
    """What modules hold in one of their dictionaries, and whether it is still the same.

    Comparing identities in one go costs a tenth of looking at every module by itself. No reference
    to the root is kept: the model may go away any time.

    Args:
        root: The model.
        others: Further modules whose slots count.
        kind: Which dictionary of theirs.
    """

    def __init__(self, root: nn.Module, others: list[nn.Module], kind: Slot) -> None:
        self._read = attrgetter(kind)
        self._others = others
        dicts = [self._read(root), *map(self._read, others)]
        self.held: list[Any] = list(chain.from_iterable(map(_VALUES, dicts)))
        self._names: list[str] = list(chain.from_iterable(map(_KEYS, dicts)))

    def still_hold(self, root: nn.Module) -> bool:
        """Whether every module has the same objects in the same slots."""
        dicts = [self._read(root), *map(self._read, self._others)]
        now = list(chain.from_iterable(map(_VALUES, dicts)))
        return (
            len(now) == len(self.held)
            and all(map(is_, now, self.held))
            and list(chain.from_iterable(map(_KEYS, dicts))) == self._names
        )


class _Structure:
    """A walked model; it holds no reference to the model itself, which may go away any time."""

    def __init__(self, model: nn.Module) -> None:
        self._root_path: str | None = None
        self._found: list[tuple[str, nn.Module]] = []
        self._visited: list[nn.Module] = []
        self._walk("", model, model, set())
        self.children = Slots(model, self._visited, "_modules")
        self._named: dict[Slot, tuple[Slots, list[tuple[str, Any]]] | None] = {}

    def modules(self, model: nn.Module) -> list[tuple[str, nn.Module]]:
        """The modules by path."""
        if self._root_path is None:
            return self._found
        return [(self._root_path, model), *self._found]

    def named(self, model: nn.Module, kind: Slot) -> list[tuple[str, Any]]:
        """Parameters or buffers by name; found again once a slot changed or was lazy."""
        kept = self._named.get(kind)
        if kept is not None and kept[0].still_hold(model):
            return kept[1]
        modules = self.modules(model)
        named, any_lazy = _named(modules, kind)
        slots = Slots(model, [module for _, module in modules if module is not model], kind)
        # a lazy one gets its values in place, which no identity tells
        self._named[kind] = None if any_lazy else (slots, named)
        return named

    def _walk(self, path: str, module: nn.Module, root: nn.Module, seen: set[int]) -> None:
        while (attribute := wrapped_attribute(module)) is not None:
            self._visit(module, root)
            module = module._modules[attribute]  # type: ignore[assignment]
        if id(module) in seen:
            return
        seen.add(id(module))
        self._visit(module, root)
        if module is root:
            self._root_path = path
        else:
            self._found.append((path, module))
        for name, child in module._modules.items():
            if child is not None:
                self._walk(f"{path}.{name}" if path else name, child, root, seen)

    def _visit(self, module: nn.Module, root: nn.Module) -> None:
        if module is not root:
            self._visited.append(module)


def _named(modules: list[tuple[str, nn.Module]], kind: Slot) -> tuple[list[tuple[str, Any]], bool]:
    """Everything in the modules' slots, each once; and whether a lazy one was left out."""
    seen: set[int] = set()
    found: list[tuple[str, Any]] = []
    any_lazy = False
    for path, module in modules:
        for name, value in getattr(module, kind).items():
            if value is None or id(value) in seen:
                continue
            if is_lazy(value):
                any_lazy = True
                continue
            seen.add(id(value))
            found.append((join(path, name), value))
    return found, any_lazy


_MOST = 8
"""Models whose structure is kept."""
_KEPT: WeakKeyDictionary[nn.Module, _Structure] = WeakKeyDictionary()


def join(path: str, name: str) -> str:
    """Append a name to a module path; the root's path is empty."""
    return f"{path}.{name}" if path else name


def named_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Iterate over parameters by name; a tied one once, under its first name; no lazy one."""
    return iter(_structure(model).named(model, "_parameters"))


def named_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Iterate over buffers by name; a shared one once, under its first name; no lazy one."""
    return iter(_structure(model).named(model, "_buffers"))
