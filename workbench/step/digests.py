"""Digests by which a replay is compared with the record, bit for bit.

Recorder and replay call the same functions at the same moments: the loss after its stage, gradients
at their gate (unscaled, not clipped), random numbers after the last stage that ran.
"""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING

import torch

from workbench.numerics.digests import raw_parts, tensor_digest
from workbench.step.gates import clean_name

if TYPE_CHECKING:
    from torch import Tensor, nn


def loss_bits(loss: Tensor) -> str:
    """The loss's dtype and bytes, for example ``float32:0000c07f``."""
    name = str(loss.dtype).removeprefix("torch.")
    return f"{name}:{b''.join(bytes(part.tolist()) for part in raw_parts(loss)).hex()}"


def gradient_digests(model: nn.Module) -> dict[str, str]:
    """sha256 of every gradient by its parameter's name; parameters without one are left out."""
    return {
        clean_name(name): tensor_digest(parameter.grad)
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def rng_digest() -> str:
    """sha256 over the state of the python, numpy and torch generators (CPU and every CUDA device).

    Reading does not advance any of them.
    """
    import numpy as np

    digest = hashlib.sha256(repr(random.getstate()).encode())
    kind, keys, *rest = np.random.get_state(legacy=True)
    digest.update(f"{kind}{rest}".encode())
    digest.update(np.asarray(keys).tobytes())
    digest.update(torch.get_rng_state().numpy().tobytes())
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for state in torch.cuda.get_rng_state_all():
            digest.update(state.numpy().tobytes())
    return digest.hexdigest()
