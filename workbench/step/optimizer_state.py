"""State of an optimizer before a step, by parameter name.

``Optimizer.load_state_dict`` casts floating-point state to the parameter's dtype and matches by
position. Neither is wanted here: the state goes back bit for bit, and to the parameter it was of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from workbench.errors import CannotRunError
from workbench.evidence.wording import counted
from workbench.step.names import named_parameters
from workbench.step.object_state import simple_attributes, type_name
from workbench.step.shards import Shard, shard_of
from workbench.step.snapshots import SCALARS, How, copy_tree, plain, snapshot_tree

if TYPE_CHECKING:
    from torch.optim import Optimizer

_OWN = frozenset({"defaults", "state", "param_groups", "_zero_grad_profile_name", "_patched"})
MOST_SHOWN = 500
"""Differences that a message lists before it only counts them."""
_HOOKS = ("_optimizer_", "_warned_", "_hook_for_profile")


@dataclass
class OptimizerState:
    """One optimizer's state.

    Attributes:
        type: Qualified name of its class.
        groups: Per parameter group ``parameters`` (names) and ``hyperparameters``.
        state: Per parameter name its entries: tensors, scalars and nests of them.
        attributes: The optimizer's own simple attributes.
        how: How the entries were kept; ``assumed`` when they were read only at the trip.
        on_host: Entries ``name/key`` that live on the CPU though their parameter does not.
        left_out: What could not be kept.
        shards: Where an entry ``name/key`` that is one rank's part belongs in its whole.
    """

    type: str
    groups: list[dict[str, Any]] = field(default_factory=list)
    state: dict[str, dict[str, Any]] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    how: How = "assumed"
    on_host: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    shards: dict[str, Shard] = field(default_factory=dict)


def parameter_names(model: nn.Module, optimizers: Sequence[Optimizer]) -> dict[int, str]:
    """Name every parameter of the optimizers by ``id``: its name in the model, or its position."""
    names = {id(parameter): name for name, parameter in named_parameters(model)}
    for number, optimizer in enumerate(optimizers):
        position = 0
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                names.setdefault(id(parameter), f"optimizer{number}.{position}")
                position += 1
    return names


def hyperparameters(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Copy the hyperparameters of every group as they are now (a tensor rate as a snapshot)."""
    found = []
    for group in optimizer.param_groups:
        values = {**group}
        values.pop("params", None)
        for key, value in values.items():
            if isinstance(value, (Tensor, list, dict)):
                values[key] = snapshot_tree(value)
        found.append(values)
    return found


def capture_optimizer(
    optimizer: Optimizer,
    names: Mapping[int, str],
    groups: list[dict[str, Any]] | None = None,
    how: How = "cow",
) -> OptimizerState:
    """Keep an optimizer's state.

    Args:
        optimizer: The optimizer.
        names: As ``parameter_names`` gives them.
        groups: Hyperparameters noted earlier, where they may have changed since.
        how: ``assumed`` when the step has already run in part.
    """
    given = hyperparameters(optimizer) if groups is None else groups
    state = OptimizerState(type_name(optimizer), how=how)
    for number, (group, values) in enumerate(zip(optimizer.param_groups, given, strict=True)):
        members = [names[id(p)] for p in group["params"]]
        kept = {k: v for k, v in values.items() if plain(v)}
        state.left_out += [f"group {number}: {k}" for k in values if k not in kept]
        state.groups.append({"parameters": members, "hyperparameters": kept})
        for name, parameter in zip(members, group["params"], strict=True):
            entries = optimizer.state.get(parameter)
            if entries:
                _keep_entries(state, name, parameter, entries)
    own, left = simple_attributes(optimizer, skip=_OWN)
    state.attributes = {k: v for k, v in own.items() if not k.startswith(_HOOKS)}
    state.left_out += [k for k in left if not k.startswith(_HOOKS)]
    return state


def hold_optimizer(optimizer: Optimizer) -> Any:
    """An optimizer as it is now, for ``capture_optimizer`` later; call it without grad mode.

    Its state is held copy-on-write, and worked out by name only where a step needs it.

    Returns:
        A twin of an optimizer of torch's own; None where only ``capture_optimizer`` will do.
    """
    if not type(optimizer).__module__.startswith("torch.optim"):
        return None
    state = {}
    try:
        for parameter, entries in optimizer.state.items():
            if type(entries) is not dict:
                return None
            state[parameter] = {key: _held(value) for key, value in entries.items()}
    except (RuntimeError, NotImplementedError):  # shared memory, arrays, mapped files
        return None
    twin = object.__new__(type(optimizer))
    twin.__dict__.update(optimizer.__dict__)
    twin.__dict__["state"] = state
    return twin


def _held(value: Any) -> Any:
    kind = type(value)
    if kind is Tensor:
        return torch._lazy_clone(value)
    if kind in SCALARS:
        return value
    if isinstance(value, Tensor):
        raise NotImplementedError(kind)
    return snapshot_tree(value)


def _keep_entries(
    state: OptimizerState, name: str, parameter: Tensor, entries: Mapping[str, Any]
) -> None:
    kept = state.state.setdefault(name, {})
    for key, value in entries.items():
        try:
            shard = shard_of(value)
        except ValueError:
            state.left_out.append(f"{name}/{key}")
            continue
        if not isinstance(key, str) or not plain(value):
            state.left_out.append(f"{name}/{key}")
            continue
        if shard is not None:
            state.shards[f"{name}/{key}"] = shard
        kept[key] = snapshot_tree(value)
        if isinstance(value, Tensor) and value.device.type == "cpu" != parameter.device.type:
            state.on_host.append(f"{name}/{key}")


# -- restoring --------------------------------------------------------------------------------


def optimizer_differences(
    recorded: Sequence[OptimizerState], model: nn.Module, optimizers: Sequence[Optimizer]
) -> list[str]:
    """List where freshly built optimizers do not fit the recorded ones."""
    if len(recorded) != len(optimizers):
        return [
            f"{counted(len(recorded), 'optimizer')} in the record, {len(optimizers)} built here"
        ]
    names = parameter_names(model, optimizers)
    differences = []
    for number, (state, optimizer) in enumerate(zip(recorded, optimizers, strict=True)):
        where = f"optimizer {number}"
        if state.type != type_name(optimizer):
            differences.append(
                f"{where} is {state.type!r} in the record and {type_name(optimizer)!r} here"
            )
        here = [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups]
        there = [list(group["parameters"]) for group in state.groups]
        if len(here) != len(there):
            differences.append(
                f"{where}: {counted(len(there), 'group')} in the record, {len(here)} here"
            )
            continue
        differences += [
            f"{where}, group {index}: parameters {_only(old, new)}"
            for index, (old, new) in enumerate(zip(there, here, strict=True))
            if old != new
        ]
    return differences


def _only(recorded: list[str], here: list[str]) -> str:
    gone = [name for name in recorded if name not in here]
    new = [name for name in here if name not in recorded]
    if not gone and not new:
        return "are in another order"
    return f"only in the record: {gone!r}, only here: {new!r}"


def restore_optimizers(
    recorded: Sequence[OptimizerState],
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    place: Callable[..., Tensor],
) -> None:
    """Put recorded states into optimizers whose differences were checked before."""
    names = parameter_names(model, optimizers)
    for state, optimizer in zip(recorded, optimizers, strict=True):
        host = frozenset(state.on_host)
        optimizer.state.clear()
        for group, saved in zip(optimizer.param_groups, state.groups, strict=True):
            for key, value in saved["hyperparameters"].items():
                group[key] = copy_tree(value, lambda t: place(t, torch.device("cpu")))
            for parameter in group["params"]:
                name = names[id(parameter)]
                if name in state.state:
                    optimizer.state[parameter] = {
                        key: _entry(value, parameter, f"{name}/{key}" in host, place)
                        for key, value in state.state[name].items()
                    }
        for name, value in state.attributes.items():
            if name in _OWN or name.startswith(("__", *_HOOKS)):
                continue
            if name in optimizer.__dict__ or not hasattr(type(optimizer), name):
                setattr(optimizer, name, copy_tree(value, lambda t: place(t, t.device)))


def _entry(value: Any, parameter: Tensor, host: bool, place: Callable[..., Tensor]) -> Any:
    device = torch.device("cpu") if host else parameter.device
    return copy_tree(value, lambda t: place(t, device))


def refuse_differences(differences: Sequence[str]) -> None:
    """Raise when a recorded state does not fit; nothing has been loaded then.

    Raises:
        CannotRunError: Names what differs.
    """
    if not differences:
        return
    # all of them: which one is missing is what tells the right step from a wrong one
    shown = "; ".join(differences[:MOST_SHOWN])
    rest = len(differences) - MOST_SHOWN
    more = f"; and {rest} more" if rest > 0 else ""
    raise CannotRunError(
        f"The recorded state does not fit what the training step built: {shown}{more}. Nothing was "
        "loaded, since a half-restored step would compute something else. Build the model and the "
        "optimizers as the recorded run did, or pass the training step of that run with --step."
    )
