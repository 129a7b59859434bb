"""Any tensor as plain dense values that can be counted, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

CHUNK: Final = 262_144  # elements: larger temporaries page-fault on every call

_FLOAT8: Final = frozenset(
    dtype
    for name in (
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    )
    if isinstance(dtype := getattr(torch, name, None), torch.dtype)
)
# Dtypes every CPU kernel used here takes as they are.
NATIVE: Final = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})
_SPARSE_COMPRESSED: Final = frozenset(
    {torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}
)


def local_values(t: Tensor) -> Tensor | None:
    """The stored values of a tensor, without its history.

    Distributed tensors give their local part and sparse tensors their stored values (implicit
    zeros are finite). Tensors without values (meta, fake) give None.
    """
    if t.requires_grad:
        t = t.detach()
    to_local = getattr(t, "to_local", None)
    if to_local is not None:
        t = to_local()
    if t.device.type == "meta" or t.is_quantized:
        return None
    if t.layout is torch.sparse_coo:
        # An uncoalesced tensor stands for sums of its stored values; those sums are its elements.
        return t.coalesce().values()
    if t.layout in _SPARSE_COMPRESSED:
        return t.values()
    return t


def can_be_nonfinite(dtype: torch.dtype) -> bool:
    """Whether any value of this dtype is NaN or infinite."""
    return dtype in NATIVE or dtype in _FLOAT8 or dtype.is_complex


def dense_order(t: Tensor) -> Tensor:
    """The same elements in the order they lie in memory, where order does not matter.

    Kernels walk a transposed matrix some 25 times slower than a contiguous one.
    """
    if t.is_contiguous():
        return t
    order = sorted(range(t.dim()), key=lambda dim: -t.stride(dim))
    return t.permute(order)


def real_view(t: Tensor) -> Tensor:
    """Complex tensors as real ones with a last dimension of 2; others as they are."""
    if not t.is_complex():
        return t
    t = t.resolve_conj().resolve_neg()
    if t.dtype is torch.complex32:  # most kernels lack it; the wider type holds every value of it
        t = t.to(torch.complex64)
    return torch.view_as_real(t)


def countable(t: Tensor) -> Tensor:
    """The same values in a dtype whose comparisons exist: float8 widened to float32, exactly."""
    return t.to(torch.float32) if t.dtype in _FLOAT8 else t


def chunks(t: Tensor) -> Iterator[Tensor]:
    """Flat pieces of at most ``CHUNK`` elements, views where the memory allows."""
    if t.numel() <= CHUNK:
        yield t.reshape(-1)
        return
    if t.is_contiguous():
        yield from t.view(-1).split(CHUNK)
        return
    # Splitting along the first dimensions keeps every temporary small.
    for part in t.split(max(1, CHUNK * t.shape[0] // t.numel())) if t.dim() else (t,):
        if part.numel() > CHUNK and part.dim() > 1 and part.shape[0] == 1:
            yield from chunks(part[0])
        else:
            yield part.reshape(-1)
