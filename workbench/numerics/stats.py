"""Statistics of a tensor in few passes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from workbench.numerics.arrays import (
    SAFE_HIGH,
    SAFE_LOW,
    SAFE_SUM_HIGH,
    SAFE_SUM_LOW,
    below_normal,
    bits_of,
    dot,
    ends,
    reaches_below,
    sum_of_squares,
)
from workbench.numerics.bits import bit_ends, small_bits
from workbench.numerics.counts import Counts, ends_finite, nonfinite_counts
from workbench.numerics.dense import (
    CHUNK,
    NATIVE,
    PLAIN,
    Array,
    as_array,
    can_be_nonfinite,
    chunks,
    countable,
    dense_order,
    float_arrays,
    is_snapshot,
    local_values,
    real_view,
    scratch,
    without_history,
)
from workbench.numerics.limits import dtype_limits

SMALL: Final = CHUNK
"""Elements up to which a float32 or float64 tensor is looked at in one piece."""

# Up to this many elements looking at narrow floats costs less widened than by their bits.
_NARROW: Final = 32_768
_PIECE: Final = 65_536
_WIDE: Final = frozenset({torch.float32, torch.float64})
_DEVICE_CHUNK: Final = 1 << 24
_NORMAL: Final = {dtype: dtype_limits(dtype).smallest_normal for dtype in NATIVE}
# numpy scalars: comparing an array with a Python float takes twice as long.
_TYPED_NORMAL: Final = {
    dtype: np.float64(normal) if dtype is torch.float64 else np.float32(normal)
    for dtype, normal in _NORMAL.items()
}


# Their bits: of two positive numbers the smaller has the smaller bits.
_NORMAL_BITS = {dtype: bits_of(normal) for dtype, normal in _TYPED_NORMAL.items()}
_INF: Final = math.inf


def typed_normal(dtype: torch.dtype) -> Any:
    """Smallest normal number of a native dtype, as a numpy scalar of what it is looked at in."""
    return _TYPED_NORMAL[dtype]


_new_tuple = tuple.__new__


class TensorStats(NamedTuple):
    """Counts and ranges of one tensor.

    ``min``, ``max``, ``absmax`` and ``mean_square`` are over finite elements and None when there
    are none; counts and ends are exact, ``mean_square`` to about 1e-4. Of a complex tensor, ranges
    and subnormals are over real and imaginary parts taken as elements of their own; counts and
    zeros are of complex elements.
    """

    nan: int
    pos_inf: int
    neg_inf: int
    finite: int
    min: float | None
    max: float | None
    absmax: float | None
    mean_square: float | None
    zeros: int
    subnormals: int

    @property
    def counts(self) -> Counts:
        """The counts alone."""
        return Counts(self.nan, self.pos_inf, self.neg_inf, self.finite)

    @property
    def nonfinite(self) -> int:
        """NaN and infinities together."""
        return self.nan + self.pos_inf + self.neg_inf

    def as_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return self._asdict()


def tensor_stats(t: Tensor) -> TensorStats:
    """Statistics of a tensor of any dtype, layout and device.

    One look at the two ends decides whether anything is non-finite; only then are elements
    counted. No temporary is larger than one piece of the tensor. Tensors without values (meta)
    have all counts 0.
    """
    if t.dtype in NATIVE and type(t) in PLAIN and t.layout is torch.strided:
        # The path of nearly every op of a trace, so without the questions asked below.
        t = without_history(t)
        if t.is_cpu:
            size = t.numel()
            if 0 < size <= (SMALL if t.dtype in _WIDE else _NARROW):
                return _small_stats(t)
            if size:
                return _cpu_stats(dense_order(t))
    return _any_stats(t)


def stats_batch(tensors: Iterable[Tensor]) -> list[TensorStats]:
    """Statistics of several tensors, in order."""
    return [tensor_stats(t) for t in tensors]


def _any_stats(t: Tensor) -> TensorStats:
    values = local_values(t)
    implicit = 0 if t.layout is torch.strided or values is None else t.numel() - values.numel()
    if values is None or values.numel() == 0:
        found = _nothing(t.numel() if t.is_quantized else 0)
    elif values.dtype in NATIVE:
        found = _float_stats(dense_order(values))
    elif values.dtype.is_complex:
        found = _complex_stats(values)
    elif can_be_nonfinite(values.dtype):
        found = _narrow_stats(values)
    else:
        found = _integer_stats(values)
    return _with_zeros(found, implicit) if implicit else found


def _nothing(finite: int) -> TensorStats:
    return TensorStats(0, 0, 0, finite, None, None, None, None, 0, 0)


def _with_zeros(stats: TensorStats, zeros: int) -> TensorStats:
    """The same with the implicit zeros of a sparse tensor."""
    finite = stats.finite + zeros
    squares = (stats.mean_square or 0.0) * stats.finite
    return stats._replace(
        finite=finite,
        min=min(stats.min or 0.0, 0.0),
        max=max(stats.max or 0.0, 0.0),
        absmax=stats.absmax or 0.0,
        mean_square=squares / finite,
        zeros=stats.zeros + zeros,
    )


def _float_stats(values: Tensor) -> TensorStats:
    return _cpu_stats(values) if values.is_cpu else _device_stats(values)


def finite_stats(array: Array, dtype: torch.dtype) -> TensorStats | None:
    """Statistics of a flat float32 or float64 array, if all of it is finite; else None.

    Args:
        array: Between 1 and ``CHUNK`` elements.
        dtype: What they were before they were widened: subnormals are those of this dtype.
    """
    low, high = array.item(array.argmin()), array.item(array.argmax())
    if not (low > -_INF and high < _INF):  # NaN is neither above nor below
        return None
    absmax = high if high > -low else -low
    if SAFE_LOW < absmax < SAFE_HIGH:
        squares = float(array.dot(array))  # which cannot overflow here
    else:
        squares = sum_of_squares(array, absmax)
    zeros = subnormals = 0
    normal = _NORMAL[dtype]
    if low < normal and high > -normal:
        nonnegative = low >= 0.0
        if nonnegative or reaches_below(array, _NORMAL_BITS[dtype]):
            zeros, subnormals = below_normal(array, _TYPED_NORMAL[dtype], nonnegative)
    # Past the generated __new__, which costs half a microsecond.
    size = array.size
    return _new_tuple(
        TensorStats, (0, 0, 0, size, low, high, absmax, squares / size, zeros, subnormals)
    )


def _small_stats(t: Tensor) -> TensorStats:
    dtype = t.dtype
    array = as_array(t if dtype is torch.float32 or dtype is torch.float64 else t.float())
    return finite_stats(array.ravel("K"), dtype) or _mixed_stats(t)


def _cpu_stats(values: Tensor) -> TensorStats:
    if values.dtype is torch.float64:
        return _wide_stats(values)
    if values.dtype is torch.float32:
        return _single_stats(values) or _mixed_stats(values)
    values = values.resolve_neg()
    normal = _NORMAL[values.dtype]
    total, squares, zeros, subnormals = values.numel(), 0.0, 0, 0
    low, high = math.inf, -math.inf
    for part in chunks(values):
        found = bit_ends(part)
        if found is None:
            return _mixed_stats(values)
        array: Array = scratch.floats[: part.numel()].copy_(part).numpy()
        squares += sum_of_squares(array, max(found.high, -found.low))
        if found.least < normal:
            none, few = small_bits(part, found)
            zeros, subnormals = zeros + none, subnormals + few
        low, high = min(low, found.low), max(high, found.high)
    counts = Counts(finite=total)
    return TensorStats(*counts, low, high, max(high, -low), squares / total, zeros, subnormals)


def _single_stats(values: Tensor) -> TensorStats | None:
    """Statistics of a float32 tensor of any size, piece by piece; None if not all is finite."""
    squares, zeros, subnormals = 0.0, 0, 0
    low, high = math.inf, -math.inf
    normal = _TYPED_NORMAL[torch.float32]
    limit = _NORMAL_BITS[torch.float32]
    for part in _pieces(values):
        square = float(dot(part, part))
        least, most = ends(part)
        if not SAFE_SUM_LOW < square < SAFE_SUM_HIGH:
            if not (math.isfinite(least) and math.isfinite(most)):
                return None
            square = sum_of_squares(part, max(most, -least))
        squares += square
        low, high = min(low, least), max(high, most)
        crosses = least < normal and most > -normal
        if crosses and (least >= 0.0 or reaches_below(part, limit)):
            none, few = below_normal(part, normal, least >= 0.0)
            zeros, subnormals = zeros + none, subnormals + few
    total, absmax = values.numel(), max(high, -low)
    return TensorStats(0, 0, 0, total, low, high, absmax, squares / total, zeros, subnormals)


def _pieces(values: Tensor) -> Iterator[Array]:
    """Flat pieces of a float32 tensor; slices of an array cost less than slices of a tensor."""
    if not values.is_contiguous() or values.is_neg() or is_snapshot(values):
        yield from map(as_array, chunks(values, _PIECE))
        return
    array = as_array(values).reshape(-1)
    for start in range(0, array.size, _PIECE):
        yield array[start : start + _PIECE]


def _wide_stats(values: Tensor) -> TensorStats:
    """Statistics of a float64 tensor on a CPU."""
    low_t, high_t = torch.aminmax(values)
    low, high = low_t.item(), high_t.item()
    if not (math.isfinite(low) and math.isfinite(high)):
        return _mixed_stats(values)
    return _finish(values, Counts(finite=values.numel()), low, high)


def _mixed_stats(values: Tensor) -> TensorStats:
    """Statistics of a CPU tensor that has something non-finite."""
    values = dense_order(values)
    bad = nonfinite_counts(values)
    finite = values.numel() - bad.nonfinite
    counts = bad._replace(finite=finite)
    if finite == 0:
        return TensorStats(*counts, None, None, None, None, 0, 0)
    low, high = math.inf, -math.inf
    for array in float_arrays(values):
        kept = array[np.isfinite(array)]
        if kept.size:
            low, high = min(low, float(kept.min())), max(high, float(kept.max()))
    return _finish(values, counts, low, high)


def _finish(values: Tensor, counts: Counts, low: float, high: float) -> TensorStats:
    """Squares, zeros and subnormals, once the ends are known."""
    absmax = max(high, -low)
    normal = _NORMAL[values.dtype]
    look = low < normal and high > -normal
    squares, zeros, subnormals = 0.0, 0, 0
    for array in float_arrays(values):
        part = array[np.isfinite(array)] if counts.nonfinite else array
        squares += sum_of_squares(part, absmax)
        if look and part.size:
            none, few = _small_values(part, normal, low >= 0.0)
            zeros, subnormals = zeros + none, subnormals + few
    return TensorStats(*counts, low, high, absmax, squares / counts.finite, zeros, subnormals)


def _small_values(array: Array, normal: float, nonnegative: bool) -> tuple[int, int]:
    """Zeros and subnormals of finite values."""
    mask = scratch.mask[: array.size]
    size = array
    if not nonnegative:
        size = np.abs(array, out=scratch.sizes[array.dtype][: array.size])
        if float(size.min()) >= normal:
            return 0, 0
    small = int(np.count_nonzero(np.less(size, normal, out=mask)))
    if small == 0:
        return 0, 0
    zeros = int(np.count_nonzero(np.equal(size, 0.0, out=mask)))
    return zeros, small - zeros


def _device_stats(values: Tensor) -> TensorStats:
    """Statistics on an accelerator: one host read a piece when all is finite."""
    normal = _NORMAL[values.dtype]
    total, squares, zeros, small = values.numel(), 0.0, 0, 0
    low, high = math.inf, -math.inf
    counts = Counts(finite=total)
    if not ends_finite(values):
        bad = nonfinite_counts(values)
        counts = bad._replace(finite=total - bad.nonfinite)
        if counts.finite == 0:
            return TensorStats(*counts, None, None, None, None, 0, 0)
    for part in chunks(values, _DEVICE_CHUNK):
        if counts.nonfinite:
            part = part[torch.isfinite(part)]  # noqa: PLW2901 - the finite part is the part here
            if part.numel() == 0:
                continue
        a, b = torch.aminmax(part)
        size = part.abs()
        wide = part.double()
        found = torch.stack(
            [
                a.double(),
                b.double(),
                torch.dot(wide, wide),
                (size == 0).count_nonzero().double(),
                (size < normal).count_nonzero().double(),
            ]
        ).tolist()
        low, high = min(low, found[0]), max(high, found[1])
        squares, zeros, small = squares + found[2], zeros + int(found[3]), small + int(found[4])
    return TensorStats(
        *counts, low, high, max(high, -low), squares / counts.finite, zeros, small - zeros
    )


def _narrow_stats(values: Tensor) -> TensorStats:
    # float8 has no arithmetic; widened, its values are normal, so subnormals are counted apart.
    wide = countable(dense_order(values))
    found = _float_stats(wide)
    normal = dtype_limits(values.dtype).smallest_normal
    size = wide.abs()
    small = int(((size < normal) & (size > 0)).count_nonzero())
    return found._replace(subnormals=small)


def _complex_stats(values: Tensor) -> TensorStats:
    bad = nonfinite_counts(values)
    parts = _any_stats(real_view(values))
    zeros = sum(
        int((real_view(part).abs().amax(-1) == 0).count_nonzero()) for part in chunks(values)
    )
    finite = values.numel() - bad.nonfinite
    return parts._replace(**bad._replace(finite=finite).as_dict(), zeros=zeros)


def _integer_stats(values: Tensor) -> TensorStats:
    total = values.numel()
    low, high, squares, zeros = math.inf, -math.inf, 0.0, 0
    try:
        for part in chunks(dense_order(values)):
            array = part.cpu().numpy()
            wide = array.astype(np.float64)
            low, high = min(low, float(wide.min())), max(high, float(wide.max()))
            squares += float(dot(wide, wide))
            zeros += array.size - int(np.count_nonzero(array))
    except (RuntimeError, TypeError):  # bit-packed dtypes have no numpy form
        return _nothing(total)
    return TensorStats(0, 0, 0, total, low, high, max(-low, high), squares / total, zeros, 0)
