"""Compiling a replay's model, and whether anything was compiled."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from workbench.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

    from workbench.evidence import Conditions


def compile_model(model: nn.Module, conditions: Conditions, recorded: Conditions) -> nn.Module:
    """Compile a model as the conditions say; ``off`` is a stance, not a property of the model.

    Args:
        model: The model as the step built it, perhaps compiled already.
        conditions: What to run under.
        recorded: The original conditions: where the two agree, a compiled model stays as it is.

    Returns:
        The model to run: the same one, or the module inside a wrapper compiled another way.

    Raises:
        UsageError: The backend is one that only the user's step can name.
    """
    asked = (conditions.compile, conditions.compile_dynamic)
    if conditions.compile == "off":
        return model
    if is_compiled(model) and asked == (recorded.compile, recorded.compile_dynamic):
        return model
    if conditions.compile == "other":
        raise UsageError(
            "The condition 'compile' is 'other', a backend of the user's own that only the step "
            "can name, and it cannot be chosen or changed here, so nothing was run. Choose one "
            "of: off, eager, aot_eager, aot_eager_decomp_partition, inductor."
        )
    inner: nn.Module = getattr(model, "_orig_mod", model)
    dynamic = {"on": True, "off": False}.get(conditions.compile_dynamic)
    _compile(inner, conditions.compile, dynamic)
    return inner


def _compile(module: Any, backend: str, dynamic: bool | None) -> None:
    if not type(module).forward.__module__.startswith("torch."):
        module.compile(backend=backend, dynamic=dynamic)
        return
    # dynamo skips the frames of torch's own modules: compiled in place, a plain Sequential would
    # silently run as it is written
    through = _frame_of_our_own(module._call_impl)
    module._compiled_call_impl = torch.compile(through, backend=backend, dynamic=dynamic)


def _frame_of_our_own(call: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return run


def fresh_compiler() -> None:
    """Forget what was compiled for earlier sessions.

    Each session builds a model of its own, and dynamo counts them as recompilations of one
    function: after a few it would give up and run the next ones as they are written.
    """
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def graphs_captured() -> int:
    """How many graphs ``torch.compile`` has captured in this process so far."""
    module = sys.modules.get("torch._dynamo.utils")
    return 0 if module is None else int(module.counters["stats"]["unique_graphs"])


def is_compiled(model: nn.Module) -> bool:
    """Whether a module is compiled, as a wrapper or in place."""
    return hasattr(model, "_orig_mod") or any(
        getattr(module, "_compiled_call_impl", None) is not None for module in model.modules()
    )
