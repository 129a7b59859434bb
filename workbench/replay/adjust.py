"""Conditions that belong to one model: its dtype, its optimizer's implementation, its batch.

`settings` has the process-wide ones. Everything here acts on objects that were built for one
replay; what it changes on the user's step is put back.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch

from workbench.errors import UsageError
from workbench.step.names import inner_model
from workbench.step.protocol import TrainingStep
from workbench.step.snapshots import copy_tree, exact_copy

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


DTYPES = {name: getattr(torch, name) for name in ("float64", "float32", "bfloat16", "float16")}
OPTIMIZER_FLAGS: dict[str, dict[str, bool]] = {
    "for_loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True, "fused": False},
    "fused": {"foreach": False, "fused": True},
}


def whole_dtype(name: str) -> torch.dtype | None:
    """The dtype for the whole model, or None to keep the recorded dtypes."""
    return None if name == "recorded" else cast("torch.dtype", DTYPES[name])


def cast_everything(model: nn.Module, optimizers: Sequence[Optimizer], dtype: torch.dtype) -> None:
    """Cast parameters, buffers and optimizer state in place, so that references stay valid."""
    model.to(dtype=dtype)
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for key, value in list(state.items()):
                # the step counter is a number, not a statistic: it keeps its dtype
                if key != "step" and isinstance(value, torch.Tensor) and value.is_floating_point():
                    state[key] = value.to(dtype)


def cast_batch(batch: Any, dtype: torch.dtype | None, device: torch.device) -> Any:
    """Copy a batch to a device and cast its floating tensors; the recorded one stays untouched."""

    def one(value: Tensor) -> Tensor:
        copied = exact_copy(value.detach(), device)
        if dtype is not None and copied.is_floating_point():
            copied = copied.to(dtype)
        return copied.requires_grad_(value.requires_grad)

    return copy_tree(batch, one)


def choose_optimizer(optimizers: Sequence[Optimizer], implementation: str) -> str | None:
    """Choose the optimizers' implementation in place.

    Returns:
        None when done, else a sentence why it has no effect.
    """
    if implementation == "recorded":
        return None
    flags = OPTIMIZER_FLAGS[implementation]
    for optimizer in optimizers:
        missing = [name for name, on in flags.items() if on and name not in optimizer.defaults]
        if missing:
            kind = type(optimizer).__name__
            return f"The optimizer {kind} has no {missing[0]} implementation."
    before = optimizer_implementation(optimizers)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group.update({name: on for name, on in flags.items() if name in optimizer.defaults})
        _announce_fused(optimizer, flags["fused"])
    on_cpu = all(p.device.type == "cpu" for p in _parameters(optimizers))
    if before == implementation or (on_cpu and (before, implementation) == ("default", "for_loop")):
        return f"No effect: the optimizer runs as {implementation.replace('_', '-')} already."
    return None


def _parameters(optimizers: Sequence[Optimizer]) -> list[Tensor]:
    return [p for one in optimizers for group in one.param_groups for p in group["params"]]


def _announce_fused(optimizer: Optimizer, fused: bool) -> None:
    """Tell a GradScaler whether the optimizer unscales by itself, as torch's constructors do."""
    marked = "_step_supports_amp_scaling"
    if fused:
        setattr(optimizer, marked, True)
    elif marked in vars(optimizer):
        delattr(optimizer, marked)


def set_scale(scaler: Any, scale: float) -> str | None:
    """Set the loss scale; None when done, else a sentence why it has no effect."""
    if scaler is None:
        return "The step has no loss scaler."
    get_state, load = getattr(scaler, "state_dict", None), getattr(scaler, "load_state_dict", None)
    state = get_state() if callable(get_state) else None
    if not isinstance(state, Mapping) or "scale" not in state or not callable(load):
        return f"The loss scaler {type(scaler).__name__} does not let its scale be set."
    load({**state, "scale": float(scale)})
    live = getattr(scaler, "_scale", None)
    if isinstance(live, torch.Tensor):  # already on the device: loading leaves it stale
        live.fill_(float(scale))
    return None


def optimizer_implementation(optimizers: Sequence[Optimizer]) -> str:
    """Read which implementation the optimizers' groups ask for."""
    seen = set()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            on = [name for name in ("fused", "foreach") if group.get(name)]
            off = group.get("foreach") is False and not group.get("fused")
            seen.add(on[0] if on else "for_loop" if off else "default")
    return "+".join(sorted(seen)) or "none"


@contextmanager
def step_attributes(step: TrainingStep, wanted: Mapping[str, Any]) -> Iterator[None]:
    """Set attributes of the user's step for a while (its maximal gradient norm, say)."""
    undo: list[Callable[[], None]] = []
    try:
        for name, value in wanted.items():
            undo.append(_undo(step, name))
            setattr(step, name, value)
        yield
    finally:
        for restore in reversed(undo):
            restore()


def _undo(owner: object, name: str) -> Callable[[], None]:
    own = vars(owner)
    if name in own:
        before = own[name]
        return lambda: setattr(owner, name, before)
    return lambda: delattr(owner, name)


def set_mode(model: nn.Module, mode: str) -> str | None:
    """Set train or eval mode, of every module or of some with what is inside them.

    Args:
        model: The model.
        mode: ``recorded`` keeps each module's own, ``train`` and ``eval`` set all of them, and
            ``eval:encoder+head.norm`` those named.

    Returns:
        None when something changed, else a sentence why it has no effect.

    Raises:
        UsageError: The model has no such module.
    """
    word, _, paths = mode.partition(":")
    if word == "recorded":
        return None
    known = dict(inner_model(model).named_modules())
    unknown = [path for path in paths.split("+") if path not in known]
    if unknown:
        raise UsageError(
            f"The condition 'mode' names {', '.join(repr(path) for path in unknown)}, and the "
            "model has no such module, so nothing was run. Use paths as named_modules() gives "
            "them, with + between two."
        )
    chosen = [known[path] for path in paths.split("+")] if paths else [model]
    before = [module.training for module in model.modules()]
    for module in chosen:
        module.train(word == "train")
    if before == [module.training for module in model.modules()]:
        return f"No effect: these modules are in {word} mode already."
    return None


def describe(model: nn.Module) -> dict[str, Any]:
    """Read back what the model is made of: its dtypes, its device and its mode."""
    parameters = list(model.parameters())
    modes = {module.training for module in model.modules()}
    return {
        "dtype": "+".join(sorted({str(p.dtype).removeprefix("torch.") for p in parameters})),
        "device": "+".join(sorted({str(p.device) for p in parameters})) or "cpu",
        "mode": "mixed" if len(modes) > 1 else "train" if True in modes else "eval",
    }


def reseed(seed: int) -> None:
    """Seed every global generator with a fixed number, so that the run can be repeated."""
    import numpy as np

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def place_scaler(scaler: Any, device: torch.device) -> None:
    """Move torch's own loss scaler to the replay's device; others hold what they hold."""
    if not isinstance(scaler, torch.amp.GradScaler):
        return
    own = vars(scaler)
    own["_device"] = device.type
    for name in ("_scale", "_growth_tracker"):
        if isinstance(own.get(name), torch.Tensor):
            own[name] = own[name].to(device)


def overrides(step: object, name: str) -> bool:
    """Whether a step brings its own version of an optional method."""
    own = getattr(type(step), name, None)
    return own is not None and own is not getattr(TrainingStep, name)
