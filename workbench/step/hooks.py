"""Hooks of a model: what runs in a step besides its modules' forwards, and is no state.

A hook that the training script registered is not on the model that ``build_model`` gives. It cannot
be recorded, only be named, so that a replay that comes out otherwise says what it lacked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from workbench.step.model_state import ModelState
from workbench.step.names import walk

_OF_MODULES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_OF_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_OTHERS = ("workbench.", "torch.")
"""Packages whose hooks come and go with a run or a wrapper."""


def hooks_of(module: nn.Module) -> list[str]:
    """Qualified names of the functions that are hooked to a module and its own parameters.

    Args:
        module: The module; its children are not looked at.
    """
    tables: list[Any] = [getattr(module, name, None) for name in _OF_MODULES]
    for parameter in module._parameters.values():
        tables += [getattr(parameter, name, None) for name in _OF_PARAMETERS]
    found = [_name(hook) for table in tables if table for hook in table.values()]
    return sorted(name for name in found if not name.startswith(_OTHERS))


def _name(hook: Any) -> str:
    function = getattr(hook, "func", hook)  # of a partial
    kind = function if hasattr(function, "__qualname__") else type(function)
    return f"{kind.__module__}.{kind.__qualname__}"


def lacking(recorded: ModelState, model: nn.Module) -> list[tuple[str, str]]:
    """Hooks that the recorded model had and a model that was built lacks: path and name.

    Args:
        recorded: The recorded state.
        model: The model after a forward: libraries hook theirs when it is first called.
    """
    found: list[tuple[str, str]] = []
    for path, module in walk(model):
        described: Mapping[str, Any] = recorded.modules.get(path, {})
        names: Iterable[Any] = described.get("hooks") or ()
        here = Counter(hooks_of(module))
        found += [(path, name) for name in (Counter(map(str, names)) - here).elements()]
    return found
