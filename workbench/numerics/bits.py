"""Ends of a float tensor by its bits, which integers compare faster than floats do.

Of float32, float16 and bfloat16 numbers of one sign, the larger magnitude has the larger bits. So
the ends of the bits, once taken with and once without a sign, are four numbers: the largest
positive one, the negative one of largest magnitude, and the smallest magnitude of either sign.
Neither a temporary nor a look at single elements is needed.
"""

from __future__ import annotations

import math
import struct
import threading
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from workbench.numerics.dense import CHUNK, Array, as_array, scratch

# dtype -> (integers of its size, numpy's without a sign, bits of infinity, bits of the sign)
_LAYOUT: Final[dict[torch.dtype, tuple[torch.dtype, Any, int, int]]] = {
    torch.float32: (torch.int32, np.uint32, 0x7F800000, 0x80000000),
    torch.float16: (torch.int16, np.uint16, 0x7C00, 0x8000),
    torch.bfloat16: (torch.int16, np.uint16, 0x7F80, 0x8000),
}


class Ends(NamedTuple):
    """Smallest and largest element, the smallest magnitude, and the bits without a sign."""

    low: float
    high: float
    least: float
    bits: Array


def bit_ends(part: Tensor) -> Ends | None:
    """Find the ends of a non-empty flat CPU tensor of float32, float16 or bfloat16.

    Returns:
        None where anything is NaN or infinite.
    """
    dtype = part.dtype
    whole, unsigned, infinity, sign = _LAYOUT[dtype]
    signed = part.view(whole)
    nearest_t, largest_t = torch.aminmax(signed)
    nearest, largest = int(nearest_t.item()), int(largest_t.item())
    if largest >= infinity:
        return None
    bits: Array = as_array(signed).view(unsigned)
    if nearest >= 0:
        least = _value(nearest, dtype)
        return Ends(least, _value(largest, dtype), least, bits)
    deepest = int(_maximum(bits)) - sign
    if deepest >= infinity:
        return None
    low = -_value(deepest, dtype)
    nearest += sign  # without the sign: of the negative ones, the smallest magnitude
    if largest < 0:
        least = _value(nearest, dtype)
        return Ends(low, -least, least, bits)
    least = min(nearest, int(_minimum(bits)))
    return Ends(low, _value(largest, dtype), _value(least, dtype), bits)


def small_bits(part: Tensor, ends: Ends) -> tuple[int, int]:
    """Count zeros and subnormals of a flat CPU tensor whose ends are known.

    Args:
        part: At most ``CHUNK`` finite elements.
        ends: Its ends.
    """
    _, unsigned, infinity, sign = _LAYOUT[part.dtype]
    bits = ends.bits
    if ends.low < 0.0 or math.copysign(1.0, ends.low) < 0.0:
        bits = np.bitwise_and(bits, unsigned(sign - 1), out=_room.of(unsigned)[: bits.size])
    # the smallest normal number has an exponent of 1: the lowest bit of infinity's
    limit = unsigned(infinity & -infinity)
    small = int(np.count_nonzero(np.less(bits, limit, out=scratch.mask[: bits.size])))
    if not small:
        return 0, 0
    # Counting a mask is several times faster than counting integers.
    zeros = int(np.count_nonzero(np.equal(bits, unsigned(0), out=scratch.mask[: bits.size])))
    return zeros, small - zeros


class _Room(threading.local):
    """A buffer for each kind of integers, made once per thread."""

    def __init__(self) -> None:
        self._buffers: dict[Any, Array] = {}

    def of(self, kind: Any) -> Array:
        found = self._buffers.get(kind)
        if found is None:
            found = self._buffers[kind] = np.empty(CHUNK, dtype=kind)
        return found


_room: Final = _Room()


def _value(bits: int, dtype: torch.dtype) -> float:
    """The number of some bits without a sign."""
    if dtype is torch.float16:
        return float(_UNPACK_HALF(_PACK_HALF(bits))[0])
    return float(_UNPACK(_PACK(bits << 16 if dtype is torch.bfloat16 else bits))[0])


_PACK, _UNPACK = struct.Struct("<I").pack, struct.Struct("<f").unpack
_PACK_HALF, _UNPACK_HALF = struct.Struct("<H").pack, struct.Struct("<e").unpack
_minimum = np.minimum.reduce
_maximum = np.maximum.reduce
