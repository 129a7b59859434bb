"""Looks at flat numpy arrays of floats: ends, squares, what lies below the normal numbers.

Every call of numpy costs a microsecond or two before it does anything, so that there are few.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from workbench.numerics.dense import Array, scratch

# Squares of float32 values outside of this range overflow, or lose bits to underflow.
SAFE_LOW, SAFE_HIGH = 1e-15, 1e15
# Sums of squares between these are finite, and what underflowed is no part of them that counts.
SAFE_SUM_LOW, SAFE_SUM_HIGH = 1e-26, 1e30
_FLOAT64_SAFE_LOW, _FLOAT64_SAFE_HIGH = 1e-140, 1e140
# bytes -> (integers with and without a sign, the bits without the sign)
_BITS: Final[dict[int, tuple[Any, Any, int]]] = {
    4: (np.int32, np.uint32, 0x7FFF_FFFF),
    8: (np.int64, np.uint64, 0x7FFF_FFFF_FFFF_FFFF),
}

# dot warns where it overflows; without the search for other kinds of arrays a call costs half
dot = getattr(np.vdot, "_implementation", np.vdot)
_count = np.count_nonzero


def ends(array: Array) -> tuple[float, float]:
    """Smallest and largest element; NaN where any is NaN.

    To find where they are costs a microsecond less a call than numpy's reductions.
    """
    return array.item(array.argmin()), array.item(array.argmax())


def bits_of(number: Any) -> int:
    """The bits of a positive numpy scalar, as an integer."""
    return int(number.view(_BITS[number.itemsize][1]))


def reaches_below(array: Array, limit: int) -> bool:
    """Whether any magnitude of a finite array lies below the positive number that has these bits.

    Among numbers of one sign the smallest magnitude has the smallest bits: of the negative ones it
    is the least integer with a sign, of the positive ones the least without.
    """
    signed, unsigned, magnitude = _BITS[array.itemsize]
    bits = array.view(unsigned)
    if bits.item(bits.argmin()) < limit:
        return True
    bits = array.view(signed)
    nearest: int = bits.item(bits.argmin())
    return nearest < 0 and nearest & magnitude < limit


def below_normal(array: Array, normal: Any, nonnegative: bool) -> tuple[int, int]:
    """Zeros and subnormals of at most ``CHUNK`` finite values."""
    size = array.size
    if not nonnegative:
        array = np.abs(array, out=scratch.sizes[array.dtype][:size])
    mask = scratch.mask[:size]
    small = _count(np.less(array, normal, out=mask))
    if not small:
        return 0, 0
    # Counting a mask is several times faster than counting floats.
    zeros = _count(np.equal(array, 0.0, out=mask))
    return int(zeros), int(small - zeros)


def sum_of_squares(array: Array, absmax: float) -> float:
    """Sum of squares, in float64 where float32 squares would overflow or vanish."""
    if SAFE_LOW < absmax < SAFE_HIGH:
        return float(dot(array, array))
    if absmax == 0.0:
        return 0.0
    wide = array.astype(np.float64)
    if _FLOAT64_SAFE_LOW < absmax < _FLOAT64_SAFE_HIGH:
        return float(dot(wide, wide))
    scaled = wide / absmax
    return float(dot(scaled, scaled)) * absmax * absmax
