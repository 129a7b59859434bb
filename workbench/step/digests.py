"""Digests by which a replay is compared with the record, bit for bit.

Recorder and replay call the same functions at the same moments: the loss after its stage, gradients
at their gate (unscaled, not clipped), random numbers after the last stage that ran.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from workbench.numerics.digests import raw_parts, tensor_digest
from workbench.step.gates import optimizer_state_tensors
from workbench.step.names import named_buffers, named_parameters
from workbench.step.rng import capture_rng

if TYPE_CHECKING:
    from torch.optim import Optimizer


def loss_bits(loss: Tensor) -> str:
    """Return the loss's dtype and bytes in memory order, for example ``float32:0000c07f``."""
    name = str(loss.dtype).removeprefix("torch.")
    return f"{name}:{b''.join(part.numpy().tobytes() for part in raw_parts(loss)).hex()}"


def gradient_digests(model: nn.Module) -> dict[str, str]:
    """Digest every gradient that is there, by parameter name, as 64 hex digits each."""
    return {
        name: tensor_digest(parameter.grad)
        for name, parameter in named_parameters(model)
        if parameter.grad is not None
    }


def rng_digest() -> str:
    """sha256 over every random source as it is now; none is advanced."""
    return capture_rng().digest()


def state_fingerprint(model: nn.Module, optimizers: Sequence[Optimizer] = ()) -> str:
    """One digest over all parameters, buffers and optimizer state, names included."""
    total = hashlib.sha256()
    tensors: list[tuple[str, Tensor]] = [*named_parameters(model), *named_buffers(model)]
    tensors += optimizer_state_tensors(model, optimizers)
    for name, tensor in tensors:
        total.update(f"{name}={tensor_digest(tensor)};".encode())
    return total.hexdigest()
