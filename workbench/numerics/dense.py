"""Any tensor as plain dense values that can be counted, piece by piece."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

# Elements: larger temporaries leave the cache, and above 32 MB page-fault on every call.
CHUNK: Final = 131_072

FLOAT8: Final = frozenset(
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
# Dtypes that every kernel used here takes as they are.
NATIVE: Final = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})
PLAIN: Final = frozenset({Tensor, torch.nn.Parameter})
_NUMPY: Final = frozenset({torch.float32, torch.float64})
_SPARSE_COMPRESSED: Final = frozenset(
    {torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}
)

# Private: the type stubs lack it; a test pins what is relied on.
is_snapshot: Callable[[Tensor], bool] = torch._C._is_cow_tensor  # type: ignore[attr-defined]

Array = np.ndarray[Any, np.dtype[Any]]


def local_values(t: Tensor) -> Tensor | None:
    """The stored values of a tensor, without its history.

    Distributed tensors give their local part, nested tensors what they hold, and sparse tensors
    their stored values (implicit zeros are finite). Tensors without values (meta) and quantised
    ones give None.
    """
    t = without_history(t)
    to_local = getattr(t, "to_local", None)
    if to_local is not None:
        t = to_local()
    if t.is_nested:
        t = nested_values(t)
    if t.device.type == "meta" or t.is_quantized:
        return None
    if t.layout is torch.sparse_coo:
        # An uncoalesced tensor stands for sums of its stored values; those sums are its elements.
        return t.coalesce().values()
    if t.layout in _SPARSE_COMPRESSED:
        return t.values()
    return t


def nested_values(t: Tensor) -> Tensor:
    """What a nested tensor holds, its rows one after the other."""
    held: Tensor | None = getattr(t, "_values", None) if type(t) is not Tensor else None
    return t.values() if held is None else held


def local_part(t: Tensor) -> Tensor:
    """This rank's part of a distributed tensor; any other tensor as it is."""
    to_local = getattr(t, "to_local", None)
    if to_local is None:
        return t
    part: Tensor = to_local()
    return part


def without_history(t: Tensor) -> Tensor:
    """The same values, not followed by autograd."""
    if not t.requires_grad:
        return t
    # detach is an op: within a functorch transform its result is wrapped again
    return t.data if type(t) in PLAIN else t.detach()


def can_be_nonfinite(dtype: torch.dtype) -> bool:
    """Whether any value of this dtype is NaN or infinite."""
    return dtype in NATIVE or dtype in FLOAT8 or dtype.is_complex


def dense_order(t: Tensor) -> Tensor:
    """The same elements in the order they lie in memory, where order does not matter.

    Kernels walk a transposed matrix some 25 times slower than a contiguous one.
    """
    if t.is_contiguous():
        return t
    strides = t.stride()
    order = sorted(range(t.dim()), key=lambda dim: -strides[dim])
    return t.permute(order)


def real_view(t: Tensor) -> Tensor:
    """Complex tensors as real ones with a last dimension of 2; others as they are."""
    if not t.is_complex():
        return t
    t = t.resolve_conj().resolve_neg()
    if t.dtype is torch.complex32:  # most kernels lack it; the wider type holds every value of it
        t = t.to(torch.complex64)
    return torch.view_as_real(t)


def as_bytes(t: Tensor) -> Tensor:
    """The bits of a strided tensor as flat uint8, row-major, in place where that can be."""
    flat = t.resolve_conj().resolve_neg().contiguous().reshape(-1)
    # One element counts as contiguous whatever its stride is, and then has no view as bytes.
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)


def countable(t: Tensor) -> Tensor:
    """The same values in a dtype whose comparisons exist: float8 widened to float32, exactly."""
    return t.to(torch.float32) if t.dtype in FLOAT8 else t


def chunks(t: Tensor, size: int = CHUNK) -> Iterator[Tensor]:
    """Flat pieces of at most ``size`` elements, row-major, views where the memory allows."""
    if t.numel() <= size:
        yield t.reshape(-1)
    elif t.is_contiguous():
        yield from t.view(-1).split(size)
    elif t.shape[0] == 1:
        yield from chunks(t[0], size)
    else:
        # Splitting along the first dimension keeps every temporary small.
        rows = max(1, size * t.shape[0] // t.numel())
        for part in t.split(rows):
            yield from chunks(part, size)


def float_arrays(values: Tensor) -> Iterator[Array]:
    """Flat float32 or float64 numpy pieces of a real float CPU tensor, each valid until the next.

    float32 and float64 are read in place; narrower dtypes are widened, exactly, into one buffer.
    numpy compares and counts several times faster than torch does on a CPU.
    """
    for part in chunks(values):
        if part.dtype not in _NUMPY:
            buffer = scratch.floats[: part.numel()]
            yield buffer.copy_(part).numpy()
        else:
            yield as_array(part)


def as_array(t: Tensor) -> Array:
    """A float32 or float64 CPU tensor as a numpy array, in place where that has no side effect."""
    if is_snapshot(t):
        # numpy asks for a writable address, which would end the sharing of a snapshot.
        t = t.clone()
    if t.is_neg():
        t = t.resolve_neg()
    if t._is_zerotensor():  # forward-mode derivatives that are known to be 0 have no memory
        t = torch.zeros(t.shape, dtype=t.dtype)
    array: Array = t.numpy()
    return array


class _Scratch(threading.local):
    """Buffers that are made once per thread."""

    def __init__(self) -> None:
        self.floats = torch.empty(CHUNK, dtype=torch.float32)
        self.places: Array = np.empty(CHUNK, dtype=np.int32)
        self.narrow = torch.empty(CHUNK, dtype=torch.uint8)
        self.mask: Array = np.empty(CHUNK, dtype=np.bool_)
        self.sizes: dict[np.dtype[Any], Array] = {
            np.dtype(np.float32): np.empty(CHUNK, dtype=np.float32),
            np.dtype(np.float64): np.empty(CHUNK, dtype=np.float64),
        }


scratch: Final = _Scratch()
