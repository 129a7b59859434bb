"""Modules that are kept out of low precision for one replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.amp.autocast_mode import autocast

from workbench.errors import UsageError
from workbench.step.names import inner_model
from workbench.step.snapshots import copy_tree

if TYPE_CHECKING:
    from torch import Tensor, nn

_LOW = (torch.float16, torch.bfloat16)


@dataclass
class Float32:
    """What came of keeping modules in float32.

    Attributes:
        called: Whether one of them ran.
        acted: Whether anything of low precision was kept away from one of them.
    """

    called: bool = False
    acted: bool = False


def run_in_float32(model: nn.Module, names: Sequence[str]) -> Float32:
    """Keep modules out of autocast: float32 in, float32 inside, float32 out.

    A module whose parameters are of a lower dtype is cast, and hands back the dtype it was given,
    since nothing else would convert it for the next module. Autocast regions that a module opens
    itself stay off while it runs.

    Args:
        model: The model, built for this replay only (the hooks stay on it).
        names: Module paths as ``named_modules()`` gives them on the inner model; "" is the root.

    Raises:
        UsageError: the model has no such module.
    """
    modules = dict(inner_model(model).named_modules())
    watch = Float32()
    for name in names:
        module = modules.get(name)
        if module is None:
            raise UsageError(
                f"The condition 'float32_modules' names '{name}', and the model has no such "
                "module, so nothing was run. Use a path as named_modules() gives it."
            )
        _float32_hooks(module, watch)
    return watch


def _float32_hooks(module: nn.Module, watch: Float32) -> None:
    own_low = [p for p in module.parameters() if p.dtype in _LOW]
    low = own_low[0].dtype if own_low else None
    if low is not None:
        module.float()
        watch.acted = True
    entered: list[ExitStack] = []

    def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        given = _tensors((args, kwargs))
        kinds = {t.device.type for t in given} or {"cpu"}
        watch.called = True
        watch.acted |= any(t.dtype in _LOW for t in given)
        watch.acted |= any(torch.is_autocast_enabled(kind) for kind in kinds)
        stack = ExitStack()
        for kind in kinds:
            stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(_regions_off(watch))
        entered.append(stack)
        return _cast(args, torch.float32), _cast(kwargs, torch.float32)

    def leave(_: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        del args
        if entered:
            entered.pop().close()
        return _cast(output, torch.float32 if low is None else low)

    module.register_forward_pre_hook(enter, with_kwargs=True)
    module.register_forward_hook(leave, always_call=True)


@contextmanager
def _regions_off(watch: Float32) -> Iterator[None]:
    """Keep off the autocast regions that are entered meanwhile, however they were made."""
    original: Callable[[Any], Any] = autocast.__enter__

    def enter(region: Any) -> Any:
        enabled = region._enabled
        watch.acted |= bool(enabled)
        region._enabled = False
        try:
            return original(region)
        finally:
            region._enabled = enabled

    autocast.__enter__ = enter  # type: ignore[method-assign]
    try:
        yield
    finally:
        autocast.__enter__ = original  # type: ignore[method-assign]


def _tensors(tree: Any) -> list[Tensor]:
    found: list[Tensor] = []
    copy_tree(tree, found.append)
    return found


def _cast(tree: Any, dtype: torch.dtype) -> Any:
    return copy_tree(tree, lambda t: t.to(dtype) if t.dtype in (*_LOW, torch.float32) else t)
