"""How the magnitudes of a tensor are spread: counts by binary exponent, and the smallest one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from workbench.numerics.dense import (
    CHUNK,
    NATIVE,
    PLAIN,
    Array,
    as_array,
    chunks,
    dense_order,
    float_arrays,
    local_values,
    scratch,
    without_history,
)

# dtype that values are looked at in -> (integers of its size, mantissa bits, exponent mask, bias)
_LAYOUT: Final = {
    torch.float32: (torch.int32, 23, 0xFF, 127),
    torch.float64: (torch.int64, 52, 0x7FF, 1023),
}
_QUICK: Final = frozenset({torch.float32, torch.float16, torch.bfloat16})
_MANY: Final = 65_536
_INFINITE, _BIAS = _LAYOUT[torch.float32][2:]


class Exponents(NamedTuple):
    """Finite elements that are not zero, by binary exponent.

    Attributes:
        first: The smallest exponent ``e``; its elements have ``2**e <= |x| < 2**(e + 1)``.
            What is subnormal in float32 (or float64) counts for the exponent below the normals.
        counts: Elements of ``first``, ``first + 1``, ….
        absmin: The smallest magnitude that is not zero.
    """

    first: int
    counts: tuple[int, ...]
    absmin: float


def exponents(t: Tensor) -> Exponents | None:
    """Count the elements of a floating or complex tensor by exponent, exactly.

    Returns:
        None where no element is finite and not zero, and for tensors without floating values.
    """
    if t.dtype in _QUICK and t.is_cpu and type(t) in PLAIN and t.layout is torch.strided:
        # The path of nearly every row of a trace, so without the questions asked below.
        t = without_history(t)
        if 0 < t.numel() <= CHUNK:
            found = _quick(as_array(t if t.dtype is torch.float32 else t.float()).ravel("K"))
            if found is not None:
                return found
    return _any(t)


def _quick(array: Array) -> Exponents | None:
    """The exponents of at most ``CHUNK`` finite float32 values without zeros; None of others."""
    size = np.abs(array, out=scratch.sizes[array.dtype][: array.size])
    least = float(np.minimum.reduce(size))
    if not least > 0.0:
        return None
    # the sign is gone, so what is left above the mantissa is the exponent alone
    places = np.right_shift(size.view(np.int32), 23, out=scratch.places[: array.size])
    counts = _counted(places).tolist() if array.size >= _MANY else np.bincount(places).tolist()
    if len(counts) > _INFINITE:
        return None
    low = max(math.frexp(least)[1] - 1 + _BIAS, 0)
    return Exponents(low - _BIAS, tuple(counts[low:]), least)


def _counted(places: Array, length: int = 0) -> Array:
    """``np.bincount`` of exponents of float32, which fit into a byte: half the time for many."""
    narrow = scratch.narrow[: places.size]
    counts: Array = torch.bincount(narrow.copy_(torch.from_numpy(places)), minlength=length).numpy()
    return counts


def _any(t: Tensor) -> Exponents | None:
    values = local_values(t)
    if values is None or values.numel() == 0 or values.is_quantized:
        return None
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    if not values.is_floating_point():
        return None
    wide = torch.float64 if values.dtype is torch.float64 else torch.float32
    found: Array = np.zeros(_LAYOUT[wide][2] + 1, dtype=np.int64)
    smallest = math.inf
    for counts, least in _parts(values, wide):
        found += counts
        smallest = min(smallest, least)
    return _trimmed(found, smallest, _LAYOUT[wide][3])


def _parts(values: Tensor, wide: torch.dtype) -> Iterator[tuple[Array, float]]:
    if values.is_cpu:
        plain = values if values.dtype in NATIVE else values.to(wide)
        for array in float_arrays(dense_order(plain)):
            yield _cpu_part(array, wide)
    else:
        for part in chunks(values):
            yield _device_part(part.to(wide))


def _cpu_part(array: Array, wide: torch.dtype) -> tuple[Array, float]:
    _, mantissa, mask, _ = _LAYOUT[wide]
    signed, unsigned = (np.int64, np.uint64) if wide is torch.float64 else (np.int32, np.uint32)
    size = np.abs(array, out=scratch.sizes[array.dtype][: array.size])
    # the sign is gone, so what is left above the mantissa is the exponent alone
    bits = size.view(signed)
    if wide is torch.float32 and bits.size >= _MANY:
        places = np.right_shift(bits, mantissa, out=scratch.places[: bits.size])
        counts = _counted(places, mask + 1)
    else:
        counts = np.bincount(np.right_shift(bits, mantissa), minlength=mask + 1)
    counts[mask] = 0  # what is not finite is counted elsewhere
    least = int(bits.item(bits.argmin()))
    if not least:
        counts[0] -= bits.size - np.count_nonzero(bits)
        np.subtract(bits, 1, out=bits)  # zeros become the largest of all
        bits = bits.view(unsigned)
        least = int(bits.item(bits.argmin())) + 1
    if least >= mask << mantissa:
        return counts, math.inf
    return counts, float(unsigned(least).view(array.dtype))


def _device_part(values: Tensor) -> tuple[Array, float]:
    whole, mantissa, mask, _ = _LAYOUT[values.dtype]
    size = values.contiguous().flatten().abs()
    places = size.view(whole) >> mantissa
    counts = torch.bincount(places, minlength=mask + 1).cpu().numpy()
    counts[mask] = 0
    if counts[0]:
        counts[0] -= int((size == 0).count_nonzero())
    filled = np.flatnonzero(counts)
    if not filled.size:
        return counts, math.inf
    lowest = size[places == int(filled[0])]
    return counts, float(lowest[lowest > 0].min())


def _trimmed(counts: Array, smallest: float, bias: int) -> Exponents | None:
    filled = np.flatnonzero(counts)
    if not filled.size:
        return None
    low, high = int(filled[0]), int(filled[-1])
    return Exponents(low - bias, tuple(counts[low : high + 1].tolist()), smallest)
