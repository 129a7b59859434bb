"""Digests by which a replay is compared with the record, bit for bit.

Recorder and replay call the same functions at the same moments: the loss after its stage, gradients
at their gate (unscaled, not clipped), random numbers after the last stage that ran.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from workbench.numerics.dense import CHUNK, local_part, local_values
from workbench.numerics.digests import raw_parts, tensor_digest
from workbench.step.gates import optimizer_state_tensors
from workbench.step.names import named_buffers, named_parameters
from workbench.step.rng import capture_rng, generators_of

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from workbench.step.model_state import ModelState

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def loss_bits(loss: Tensor) -> str:
    """Return the loss's dtype and bytes in memory order, for example ``float32:0000c07f``."""
    name = str(loss.dtype).removeprefix("torch.")
    return f"{name}:{b''.join(part.numpy().tobytes() for part in raw_parts(loss)).hex()}"


def gradient_digests(model: nn.Module) -> dict[str, str]:
    """Digest every gradient that is there, by parameter name, as 64 hex digits each.

    Of a distributed one this rank's part is taken, as a tensor of its own: a bundle holds it so.
    """
    return {
        name: tensor_digest(local_part(parameter.grad))
        for name, parameter in named_parameters(model)
        if parameter.grad is not None
    }


def rng_digest(step: Any = None) -> str:
    """sha256 over every random source as it is now, and those a training step object holds."""
    return capture_rng(generators_of(step)).digest()


def state_fingerprint(model: nn.Module, optimizers: Sequence[Optimizer] = ()) -> str:
    """One digest over all parameters, buffers and optimizer state, names included."""
    total = hashlib.sha256()
    tensors: list[tuple[str, Tensor]] = [*named_parameters(model), *named_buffers(model)]
    tensors += optimizer_state_tensors(model, optimizers)
    for name, tensor in tensors:
        total.update(f"{name}={tensor_digest(tensor)};".encode())
    return total.hexdigest()


def model_fingerprint(model: ModelState) -> str:
    """One digest over the names and bits of all recorded parameters and buffers."""
    total = hashlib.sha256()
    for name in sorted(model.tensors):
        if model.info[name].kind != "attribute":
            total.update(f"{name}={tensor_digest(model.tensors[name])};".encode())
    return total.hexdigest()


def bit_sums(model: nn.Module) -> dict[str, int]:
    """Fingerprint parameters and buffers by name, cheaply enough for every training step.

    A tensor's bits are added up as integers of its element size, modulo 2**64: exact on every
    device and in every order, one pass, one host read per device. Elements that only changed places
    give the same sum.
    """
    return sums_of([*named_parameters(model), *named_buffers(model)])


def sums_of(named: Iterable[tuple[str, Tensor]]) -> dict[str, int]:
    """Fingerprint named tensors as `bit_sums` does."""
    by_device: dict[torch.device, dict[str, Tensor]] = {}
    for name, tensor in named:
        total = _bit_sum(tensor)
        by_device.setdefault(total.device, {})[name] = total
    found: dict[str, int] = {}
    for sums in by_device.values():
        found |= dict(zip(sums, torch.stack(list(sums.values())).tolist(), strict=True))
    return found


def short_sum(flat: Tensor) -> Tensor:
    """The bits of a flat dense tensor as ``bit_sums`` adds them up, modulo 2**32.

    Without the way through 64 bits it costs no more than a look for NaN and Inf: for every step.
    """
    values = torch.view_as_real(flat.resolve_conj()) if flat.is_complex() else flat
    words = values.view(_WORDS[values.element_size()])
    if words.dtype is torch.int32:
        return words.sum(dtype=torch.int32)
    if words.device.type == "cpu" and words.numel() > CHUNK:  # a large temporary would be made
        return torch.stack([p.sum(dtype=torch.int64) for p in words.view(-1).split(CHUNK)]).sum()
    return words.sum(dtype=torch.int64)


def _bit_sum(tensor: Tensor) -> Tensor:
    values = local_values(tensor.detach())
    if values is None or values.numel() == 0:
        return torch.zeros((), dtype=torch.int64)
    if values.layout is not torch.strided:
        values = values.to_dense()
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    return values.view(_WORDS[values.element_size()]).sum(dtype=torch.int64)
