"""Statistics of a tensor in few passes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from workbench.numerics.counts import Counts, nonfinite_counts
from workbench.numerics.dense import (
    CHUNK,
    NATIVE,
    can_be_nonfinite,
    chunks,
    countable,
    dense_order,
    local_values,
    real_view,
)
from workbench.numerics.limits import dtype_limits

# Squares of float32 values outside of this range overflow, or lose bits to underflow.
_SQUARE_SAFE = (1e-15, 1e15)


class TensorStats(NamedTuple):
    """Counts and ranges of one tensor.

    ``min``, ``max``, ``absmax`` and ``mean_square`` are over finite elements and None when there
    are none. Of a complex tensor they are over real and imaginary parts taken as elements of their
    own; counts are of complex elements.
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

    One ``aminmax`` decides whether anything is non-finite; only then are elements counted. No
    temporary is larger than one chunk.
    """
    values = local_values(t)
    if values is None or values.numel() == 0:
        return _without_values(t)
    extra_zeros = t.numel() - values.numel() if t.layout is not torch.strided else 0
    if values.dtype in NATIVE:
        return _float_stats(dense_order(values), extra_zeros)
    if values.dtype.is_complex:
        return _complex_stats(values, extra_zeros)
    if can_be_nonfinite(values.dtype):
        return _float_stats(countable(values), extra_zeros)
    return _integer_stats(values, extra_zeros)


def stats_batch(tensors: Iterable[Tensor]) -> list[TensorStats]:
    """Statistics of several tensors, in order."""
    return [tensor_stats(t) for t in tensors]


def _without_values(t: Tensor) -> TensorStats:
    implicit = t.numel() if t.layout is not torch.strided else 0
    finite = t.numel() if t.is_quantized else implicit
    low = 0.0 if implicit else None
    return TensorStats(0, 0, 0, finite, low, low, low, low, implicit, 0)


def _float_stats(values: Tensor, extra_zeros: int) -> TensorStats:
    low_t, high_t = torch.aminmax(values)
    low, high = low_t.item(), high_t.item()
    total = values.numel()
    if math.isfinite(low) and math.isfinite(high):
        bad = Counts()
        finite = total
    else:
        bad = nonfinite_counts(values)
        finite = total - bad.nonfinite
        if finite == 0 and not extra_zeros:
            return TensorStats(*bad[:3], 0, None, None, None, None, 0, 0)
        low, high = _finite_ends(values) if finite else (0.0, 0.0)
    absmax = max(-low, high)
    squares = _sum_of_squares(values, absmax, bool(bad.nonfinite)) if finite else 0.0
    zeros, subnormals = _small(values, low, high) if finite else (0, 0)
    if extra_zeros:
        low, high = min(low, 0.0), max(high, 0.0)
    finite += extra_zeros
    return TensorStats(
        *bad[:3], finite, low, high, absmax, squares / finite, zeros + extra_zeros, subnormals
    )


def _finite_ends(values: Tensor) -> tuple[float, float]:
    low, high = math.inf, -math.inf
    for part in chunks(values):
        finite = part[part.abs() < math.inf]
        if finite.numel():
            a, b = torch.aminmax(finite)
            low, high = min(low, a.item()), max(high, b.item())
    return low, high


def _sum_of_squares(values: Tensor, absmax: float, has_bad: bool) -> float:
    exact = not (_SQUARE_SAFE[0] < absmax < _SQUARE_SAFE[1]) or values.dtype is torch.float16
    scale = absmax if values.dtype is torch.float64 and exact else 1.0
    if absmax == 0.0:
        return 0.0
    total = 0.0
    for part in chunks(values):
        if has_bad:
            part = part[part.abs() < math.inf]
        if exact:
            part = part.to(torch.float64)
            part = part / scale if scale != 1.0 else part
        elif part.dtype is torch.bfloat16:
            part = part.to(torch.float32)
        total += torch.dot(part, part).item()
    return total * scale * scale if scale != 1.0 else total


def _small(values: Tensor, low: float, high: float) -> tuple[int, int]:
    """Zeros and subnormals."""
    normal = dtype_limits(values.dtype).smallest_normal
    if low >= normal or high <= -normal:
        return 0, 0
    zeros = subnormals = 0
    for part in chunks(values):
        size = part.abs()
        if size.amin().item() >= normal:
            continue
        small = _count(size < normal)
        none = _count(size == 0)
        zeros += none
        subnormals += small - none
    return zeros, subnormals


def _count(mask: Tensor) -> int:
    # numpy counts bools several times faster than torch does on a CPU
    if mask.device.type == "cpu":
        return int(np.count_nonzero(mask.numpy()))
    return int(mask.count_nonzero())


def _complex_stats(values: Tensor, extra_zeros: int) -> TensorStats:
    bad = nonfinite_counts(values)
    total = values.numel() + extra_zeros
    parts = _float_stats(real_view(values), 0)
    zeros = sum(_count(real_view(part).abs().amax(-1) == 0) for part in chunks(values))
    return parts._replace(
        nan=bad.nan,
        pos_inf=bad.pos_inf,
        neg_inf=bad.neg_inf,
        finite=total - bad.nonfinite,
        zeros=zeros + extra_zeros,
    )


def _integer_stats(values: Tensor, extra_zeros: int) -> TensorStats:
    total = values.numel() + extra_zeros
    low, high, squares, zeros = math.inf, -math.inf, 0.0, extra_zeros
    try:
        for part in chunks(dense_order(values)):
            wide = part.to(torch.float64)
            a, b = torch.aminmax(wide)
            low, high = min(low, a.item()), max(high, b.item())
            squares += torch.dot(wide, wide).item()
            zeros += int((part == 0).count_nonzero())
    except (RuntimeError, NotImplementedError):  # bit-packed dtypes have no arithmetic
        return TensorStats(0, 0, 0, total, None, None, None, None, 0, 0)
    if extra_zeros:
        low, high = min(low, 0.0), max(high, 0.0)
    return TensorStats(
        0, 0, 0, total, low, high, max(abs(low), abs(high)), squares / total, zeros, 0
    )


__all__ = ["CHUNK", "TensorStats", "stats_batch", "tensor_stats"]
