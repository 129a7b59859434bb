"""Digests of tensors: of their bits, and of where they are non-finite."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from workbench.numerics.counts import count, masks
from workbench.numerics.dense import as_bytes, local_values
from workbench.numerics.limits import dtype_name


def tensor_digest(t: Tensor) -> str:
    """sha256 over dtype, shape and bits (row-major), as 64 hex digits.

    Two tensors have the same digest exactly when ``==`` holds for dtype, shape and every bit, NaN
    payloads and the sign of zero included. Strides and devices do not matter.
    """
    digest = hashlib.sha256(_header(t))
    for part in raw_parts(t):
        digest.update(part.numpy().data)
    return digest.hexdigest()


def mask_digest(t: Tensor) -> str:
    """sha256 over the shape and the NaN, +Inf and -Inf masks, as 64 hex digits.

    Signs are classes: a tensor with -Inf where another has +Inf has another digest.
    """
    digest = hashlib.sha256(repr(tuple(t.shape)).encode())
    if count(t).nonfinite == 0:
        return digest.hexdigest()
    values = local_values(t.to_dense() if t.layout is not torch.strided else t)
    if values is None:
        return digest.hexdigest()
    flat = values.reshape(-1)
    for name, mask in zip(("nan", "+inf", "-inf"), masks(flat), strict=True):
        positions = mask.nonzero().reshape(-1).cpu()
        digest.update(f"{name}:{positions.numel()}:".encode())
        digest.update(positions.numpy().data)
    return digest.hexdigest()


def raw_parts(t: Tensor) -> list[Tensor]:
    """The bits of a tensor as flat contiguous uint8 CPU tensors, without a copy where it can be."""
    if t.requires_grad:
        t = t.detach()
    to_local = getattr(t, "to_local", None)
    if to_local is not None:
        t = to_local()
    if t.device.type == "meta":
        return []
    if t.layout is torch.sparse_coo:
        t = t.coalesce()
        return raw_parts(t.indices()) + raw_parts(t.values())
    if t.layout is not torch.strided:
        return raw_parts(t.to_dense())
    if t.is_quantized:
        t = t.int_repr()
    return [as_bytes(t.cpu())] if t.numel() else []


def _header(t: Tensor) -> bytes:
    return f"{dtype_name(t.dtype)}|{tuple(t.shape)}|{t.layout}|".encode()
