"""The gates: what is looked at after each stage, and what counts as bad.

Both the recorder and the replay use these functions, so *caught at* means the same in both.
Names of tensors are stable strings: ``loss``, ``loss.<component>``, ``gradient:<parameter>``,
``grad_norm``, ``parameter:<name>``, ``buffer:<name>``, ``optimizer_state:<parameter>/<key>``,
``loss_scale``, ``exception:<type>``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from workbench.numerics.counts import Counts, all_finite, count, first_nonfinite
from workbench.numerics.digests import mask_digest
from workbench.numerics.limits import dtype_name
from workbench.step.bad_sets import BadSet as BadSet
from workbench.step.bad_sets import grew
from workbench.step.names import named_buffers, named_parameters
from workbench.step.norms import gradient_norm as gradient_norm
from workbench.step.norms import largest_gradient as largest_gradient

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

SinkKind = Literal[
    "loss",
    "gradient",
    "grad_norm",
    "parameter",
    "buffer",
    "optimizer_state",
    "loss_scale",
    "exception",
]


@dataclass(frozen=True)
class BadTensor:
    """One non-finite sink.

    Attributes:
        kind: Which kind of sink it is.
        name: Stable name, prefixed by its kind (see the module's docstring).
        counts: How many NaN, +Inf, -Inf and finite elements it has.
        mask: Digest of its NaN, +Inf and -Inf masks.
        shape: Its shape.
        dtype: Its dtype's name.
        first: Index of its first non-finite element.
        value: The value of a scalar.
    """

    kind: SinkKind
    name: str
    counts: Counts
    mask: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    first: tuple[int, ...] | None = None
    value: float | None = None


def _bad(kind: SinkKind, named: Iterable[tuple[str, Tensor]]) -> tuple[BadTensor, ...]:
    """Return the non-finite ones among named tensors; the cheap all-finite test runs first."""
    pairs = list(named)
    if all_finite(tensor for _, tensor in pairs):
        return ()
    found = []
    for name, tensor in pairs:
        counts = count(tensor)
        if counts.nonfinite:
            found.append(_describe(kind, name, tensor, counts))
    return tuple(found)


def _describe(kind: SinkKind, name: str, tensor: Tensor, counts: Counts) -> BadTensor:
    first = first_nonfinite(tensor)
    real = tensor.numel() == 1 and not tensor.is_complex()
    return BadTensor(
        kind,
        name,
        counts,
        mask_digest(tensor),
        shape=tuple(tensor.shape),
        dtype=dtype_name(tensor.dtype),
        first=None if first is None else tuple(first),
        value=float(tensor.detach()) if real else None,
    )


def check_loss(loss: Tensor, components: Mapping[str, Tensor]) -> tuple[BadTensor, ...]:
    """Gate the loss and its named components (a component is listed before the total)."""
    plain = not components and type(loss) is torch.Tensor and loss.dim() == 0
    if plain and loss.is_floating_point() and math.isfinite(loss.item()):
        return ()
    named = [(f"loss.{name}", value) for name, value in components.items()]
    bad = _bad("loss", [*named, ("loss", loss)])
    if bad and bad[-1].name != "loss":  # components that cancel out never reach the loss
        return ()
    return bad


def check_gradients(
    model: nn.Module, optimizers: Sequence[Optimizer] | None = None
) -> tuple[BadTensor, ...]:
    """Gate gradients element-wise: a norm can overflow while all elements are finite.

    Args:
        model: The model.
        optimizers: The optimizers whose update comes next: a gradient that none of them uses is no
            sink. None gates all gradients, as clipping over the whole model uses them all.
    """
    used = None if optimizers is None else held_by(optimizers)
    return _bad(
        "gradient",
        (
            (f"gradient:{name}", parameter.grad)
            for name, parameter in named_parameters(model)
            if parameter.grad is not None and (used is None or id(parameter) in used)
        ),
    )


def held_by(optimizers: Sequence[Optimizer]) -> set[int]:
    """Identities of the parameters that some optimizer updates."""
    return {
        id(parameter)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


def gradient_gate(
    model: nn.Module, optimizers: Sequence[Optimizer] | None = None
) -> tuple[tuple[BadTensor, ...], float | None]:
    """Gate gradients and give their total norm, from the same one pass over them.

    Args:
        model: The model.
        optimizers: As for ``check_gradients``.

    Returns:
        The bad gradients, and the 2-norm over all gradients; None when it is not a finite number
        or some gradient is of a kind (sparse, distributed) whose norm is not taken here.
    """
    found = [
        grad for _, parameter in named_parameters(model) if (grad := parameter.grad) is not None
    ]
    norm = gradient_norm(found)
    if norm is not None and math.isfinite(norm):
        return (), norm
    return check_gradients(model, optimizers), None


def negative_second_moments(
    model: nn.Module, optimizers: Sequence[Optimizer]
) -> list[tuple[str, float]]:
    """Second moments below zero, by name, with their least value: the next root of one is NaN."""
    return [
        (name, float(tensor.min()))
        for name, tensor in optimizer_state_tensors(model, optimizers)
        if name.rsplit("/", 1)[-1] in _SECOND_MOMENTS
        and tensor.numel()
        and type(tensor) is torch.Tensor
        and tensor.dtype in _ORDERED
        and bool((tensor < 0).any())
    ]


_SECOND_MOMENTS = frozenset({"exp_avg_sq", "max_exp_avg_sq", "square_avg", "acc_delta", "sum"})
"""Where torch's optimizers keep running means or sums of squared gradients."""

_ORDERED = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
"""Dtypes in which a number can be compared with 0: neither complex ones nor 8 bit ones."""


def check_norm(norm: Tensor | float | None) -> tuple[BadTensor, ...]:
    """Gate the total gradient norm that clipping used."""
    if norm is None or (isinstance(norm, float) and math.isfinite(norm)):
        return ()
    return _bad("grad_norm", [("grad_norm", torch.as_tensor(norm))])


def check_parameters(
    model: nn.Module, held: Mapping[str, str] | None = None
) -> tuple[BadTensor, ...]:
    """Gate parameters, trainable or not.

    Args:
        model: The model.
        held: Masks that parameters held when the run began, by sink name: one that still holds
            the same does not trip.
    """
    bad = _bad(
        "parameter",
        ((f"parameter:{name}", parameter) for name, parameter in named_parameters(model)),
    )
    return tuple(one for one in bad if not held or held.get(one.name) != one.mask)


def check_optimizer_state(
    model: nn.Module, optimizers: Sequence[Optimizer]
) -> tuple[BadTensor, ...]:
    """Gate every tensor in the optimizers' per-parameter state."""
    return _bad("optimizer_state", optimizer_state_tensors(model, optimizers))


def optimizer_state_tensors(
    model: nn.Module, optimizers: Sequence[Optimizer]
) -> list[tuple[str, Tensor]]:
    """List ``(optimizer_state:<parameter>/<key>, tensor)`` in a stable order."""
    names = {id(parameter): name for name, parameter in named_parameters(model)}
    found: list[tuple[str, Tensor]] = []
    for number, optimizer in enumerate(optimizers):
        position = 0
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = names.get(id(parameter), f"optimizer{number}.{position}")
                position += 1
                state = optimizer.state.get(parameter, {})
                found += [
                    (f"optimizer_state:{name}/{key}", value)
                    for key, value in state.items()
                    if isinstance(value, torch.Tensor)
                ]
    return found


def optimizer_state_values(optimizers: Sequence[Optimizer]) -> list[Tensor]:
    """Every tensor with dimensions in the optimizers' per-parameter state; names left out."""
    return [
        value
        for optimizer in optimizers
        for entries in optimizer.state.values()
        if isinstance(entries, dict)
        for value in entries.values()
        if isinstance(value, torch.Tensor) and value.dim()
    ]


def buffer_masks(model: nn.Module) -> dict[str, BadSet]:
    """The non-finite set of every buffer that has one; finite buffers are left out."""
    return {bad.name: _set(bad) for bad in _bad("buffer", _named_buffers(model))}


def buffers_of(model: nn.Module) -> list[Tensor]:
    """All buffers, each once."""
    return [buffer for _, buffer in named_buffers(model)]


def check_buffers(model: nn.Module, before: Mapping[str, BadSet]) -> tuple[BadTensor, ...]:
    """Gate buffers: only one whose non-finite set changed and grew in this step trips.

    Args:
        model: The model.
        before: ``buffer_masks`` from the start of the step.
    """
    now = _bad("buffer", _named_buffers(model))
    return tuple(bad for bad in now if grew(_set(bad), before.get(bad.name)))


def _set(bad: BadTensor) -> BadSet:
    return BadSet(bad.counts, bad.mask)


def _named_buffers(model: nn.Module) -> Iterable[tuple[str, Tensor]]:
    return ((f"buffer:{name}", buffer) for name, buffer in named_buffers(model))


def check_scale(scaler: Any) -> tuple[BadTensor, ...]:
    """Gate the loss scale itself."""
    scale = scale_value(scaler)
    if scale is None or math.isfinite(scale):
        return ()
    return _bad("loss_scale", [("loss_scale", torch.tensor(scale))])


def scale_value(scaler: Any) -> float | None:
    """Read the loss scale without changing it; None when there is no scaler or it is off."""
    if scaler is None or not scaler_enabled(scaler):
        return None
    get_scale = getattr(scaler, "get_scale", None)
    return None if get_scale is None else float(get_scale())


def scaler_enabled(scaler: Any) -> bool:
    """Whether a scaler is there and switched on."""
    if scaler is None:
        return False
    is_enabled = getattr(scaler, "is_enabled", None)
    return True if is_enabled is None else bool(is_enabled())


def found_inf(scaler: Any, optimizer: Optimizer) -> float | None:
    """Read what the scaler found in this optimizer's gradients.

    Returns:
        The sum of ``found_inf`` over devices, or None when the scaler has not looked yet or is of
        a kind that keeps no such record.
    """
    states = getattr(scaler, "_per_optimizer_states", None)
    if states is None or id(optimizer) not in states:
        return None
    found = states[id(optimizer)].get("found_inf_per_device", {})
    if not found:
        return None
    return float(sum(float(value) for value in found.values()))


def after_update_sinks(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    scaler: Any,
    masks_before: Mapping[str, BadSet],
    held: Mapping[str, str] | None = None,
) -> tuple[BadTensor, ...]:
    """Gate everything an update may have spoiled.

    Args:
        model: The model.
        optimizers: The optimizers.
        scaler: The loss scaler, or None.
        masks_before: ``buffer_masks`` from the start of the step.
        held: As for ``check_parameters``.
    """
    return (
        *check_parameters(model, held),
        *check_optimizer_state(model, optimizers),
        *check_scale(scaler),
        *check_buffers(model, masks_before),
    )


def scaler_skips(scaler: Any, optimizers: Sequence[Optimizer]) -> bool:
    """Whether the scaler will skip: it saw the Inf, or keeps no record to tell otherwise."""
    seen = [found_inf(scaler, optimizer) for optimizer in optimizers]
    return any(value is None or value > 0 for value in seen)
