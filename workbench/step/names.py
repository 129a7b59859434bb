"""Names of modules, parameters and buffers as the user knows them, without the wrappers' parts.

DDP, ``torch.compile``, FSDP and checkpoint wrappers put a module of their own around the user's,
and with it a part of their own into every path. A user may have a submodule called ``module``
too, so wrappers are told by their class, not by the name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
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
    kept = _KEPT.get(model)
    if kept is None or not kept.still_holds(model):
        kept = _KEPT[model] = _Structure(model)
    return kept.modules(model)


Children = tuple["nn.Module | None", ...]


class _Structure:
    """A walked model; it holds no reference to the model itself, which may go away any time."""

    def __init__(self, model: nn.Module) -> None:
        self._root_path: str | None = None
        self._root_children: Children = ()
        self._found: list[tuple[str, nn.Module]] = []
        self._visited: list[tuple[nn.Module, Children]] = []
        self._walk("", model, model, set())

    def still_holds(self, model: nn.Module) -> bool:
        """Whether every module still has the children it had."""
        if tuple(model._modules.values()) != self._root_children:
            return False
        return all(
            tuple(module._modules.values()) == children for module, children in self._visited
        )

    def modules(self, model: nn.Module) -> list[tuple[str, nn.Module]]:
        """The modules by path."""
        if self._root_path is None:
            return self._found
        return [(self._root_path, model), *self._found]

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
        children = tuple(module._modules.values())
        if module is root:
            self._root_children = children
        else:
            self._visited.append((module, children))


_KEPT: WeakKeyDictionary[nn.Module, _Structure] = WeakKeyDictionary()


def join(path: str, name: str) -> str:
    """Append a name to a module path; the root's path is empty."""
    return f"{path}.{name}" if path else name


def named_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield parameters by name; a tied one once, under its first name; a lazy one not yet."""
    seen: set[int] = set()
    for path, module in walk(model):
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in seen and not is_lazy(parameter):
                seen.add(id(parameter))
                yield join(path, name), parameter


def named_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield buffers by name, persistent or not; a shared one once, under its first name."""
    seen: set[int] = set()
    for path, module in walk(model):
        for name, buffer in module._buffers.items():
            if buffer is not None and id(buffer) not in seen and not is_lazy(buffer):
                seen.add(id(buffer))
                yield join(path, name), buffer
