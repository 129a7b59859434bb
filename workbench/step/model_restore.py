"""Putting a recorded state into a freshly built model, after its names and shapes were compared."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from workbench.step.model_state import INTERNAL, ModelState, TensorKind, is_there
from workbench.step.names import join, walk
from workbench.step.snapshots import SCALARS, copy_tree, plain


def model_differences(state: ModelState, model: nn.Module) -> list[str]:
    """List where a freshly built model does not fit a recorded state, by name and shape."""
    here = _slots(model)
    differences = []
    for name, tensor in state.tensors.items():
        if state.info[name].kind == "attribute":
            continue
        other = here.get(name)
        if other is None:
            differences.append(f"{name!r} is in the record, not in the model that was built")
        elif tuple(other.shape) != tuple(tensor.shape):
            differences.append(
                f"{name!r} has shape {tuple(tensor.shape)} in the record and "
                f"{tuple(other.shape)} in the model that was built"
            )
    differences += [
        f"{name!r} is in the model that was built, not in the record"
        for name in here
        if name not in state.tensors and name not in state.missing
    ]
    for group in state.ties:
        held = {id(here[name]) for name in group if name in here}
        if len(held) > 1:
            differences.append(f"{group!r} are one tensor in the record and several in the model")
    paths = {path for path, _ in walk(model)}
    differences += [
        f"module {path!r} is in the record, not in the model that was built"
        for path in state.modules
        if path not in paths
    ]
    return differences


def _slots(model: nn.Module) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for path, module in walk(model):
        for slots in (module._parameters, module._buffers):
            found.update({join(path, n): t for n, t in slots.items() if is_there(t)})
    return found


def materialize(state: ModelState, model: nn.Module) -> None:
    """Give lazy parameters and buffers their recorded shapes, as a first forward would."""
    for path, module in walk(model):
        for name, slot in (*module._parameters.items(), *module._buffers.items()):
            recorded = state.tensors.get(join(path, name))
            if slot is not None and recorded is not None and is_lazy(slot):
                slot.materialize(recorded.shape, dtype=recorded.dtype)


def restore_model(state: ModelState, model: nn.Module, place: Callable[..., Tensor]) -> None:
    """Put a recorded state into a model whose differences were checked before.

    Args:
        state: The recorded state.
        model: The freshly built model.
        place: Gives a private copy of a recorded tensor on a device; shared storage stays shared.
    """
    home = next((p.device for p in model.parameters()), torch.device("cpu"))
    done: set[int] = set()
    by_module: dict[str, list[str]] = {}
    for full in state.tensors:
        by_module.setdefault(full.rpartition(".")[0], []).append(full)
    with torch.no_grad():
        for path, module in walk(model):
            for name, value in state.modules.get(path, {}).get("attributes", {}).items():
                _set_attribute(module, name, copy_tree(value, lambda t: place(t, t.device)))
            for full in by_module.get(path, ()):
                _restore_tensor(state, full, module, place, home, done)
            module.training = bool(state.modules.get(path, {}).get("training", module.training))
            extra = state.modules.get(path, {}).get("extra_state")
            if extra is not None:
                module.set_extra_state(copy.deepcopy(extra))


def _restore_tensor(
    state: ModelState,
    full: str,
    module: nn.Module,
    place: Callable[..., Tensor],
    home: torch.device,
    done: set[int],
) -> None:
    name = full.rpartition(".")[2]
    tensor, info = state.tensors[full], state.info[full]
    slot = _slot(module, name, info.kind)
    if slot is None:
        device = torch.device("cpu") if info.device == "cpu" else home
        _set_attribute(module, name, place(tensor, device).requires_grad_(info.requires_grad))
    elif id(slot) not in done:
        done.add(id(slot))
        _fill(slot, place(tensor, slot.device), info.requires_grad)


def _slot(module: nn.Module, name: str, kind: TensorKind) -> Tensor | None:
    if kind == "parameter":
        return module._parameters.get(name)
    if kind != "attribute":
        return module._buffers.get(name)
    value = module.__dict__.get(name)
    # a leaf may be known to the optimizer, so it keeps its identity; anything else is replaced
    return value if isinstance(value, Tensor) and value.is_leaf and value.requires_grad else None


def _fill(slot: Tensor, value: Tensor, requires_grad: bool) -> None:
    local = getattr(slot, "to_local", None)
    if local is not None:
        local().copy_(value)
        return
    slot.data = value
    if slot.is_leaf and slot.requires_grad != requires_grad:
        slot.requires_grad_(requires_grad)


def _set_attribute(module: nn.Module, name: str, value: Any) -> None:
    """Set a plain attribute; a name from a bundle may not replace a method, hook or submodule."""
    if name in INTERNAL or name.startswith("__"):
        return
    if "hook" in name and isinstance(value, bool):
        # "they are installed" is not true of this model: whoever set it has to find them missing
        return
    if name not in module.__dict__ and hasattr(type(module), name):
        return
    current = module.__dict__.get(name)
    if current is not None and not (type(current) in SCALARS or plain(current)):
        return
    module.__dict__[name] = value
