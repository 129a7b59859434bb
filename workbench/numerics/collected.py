"""Statistics of many small tensors, worked out for a whole group at once.

One call of any kernel on a few hundred elements costs more than the arithmetic. Small tensors are
therefore copied one after the other into a buffer, which later writes to them cannot change, and
ends, zeros and subnormals of all of them are found in a few calls. What must be known at once is:
whether everything is finite.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from workbench.numerics.dense import Array, as_array, without_history
from workbench.numerics.stats import TensorStats, tensor_stats, typed_normal

SMALL: Final = 2048
"""Elements up to which a tensor is collected; of larger ones the arithmetic costs more."""

_ROOM: Final = 32_768
# Sums of squares that float32 holds without overflow and without losing bits.
_LEAST, _MOST = 1e-26, 1e30
_WIDE: Final = {torch.float32: np.float32, torch.float64: np.float64}


class Late:
    """Statistics of one collected tensor, worked out when first asked for."""

    __slots__ = ("_group", "_position")

    def __init__(self, group: _Group, position: int) -> None:
        self._group = group
        self._position = position

    def now(self) -> TensorStats:
        """The statistics, exactly as ``tensor_stats`` gave them of the tensor at that time."""
        return self._group.of(self._position)


class _Group:
    """Tensors of one dtype that share a buffer until it is full."""

    __slots__ = ("_found", "_normal", "buffer", "squares", "starts", "used")

    def __init__(self, dtype: torch.dtype) -> None:
        self._normal: Any = typed_normal(dtype)
        self.buffer: Array | None = np.empty(_ROOM, dtype=_WIDE.get(dtype, np.float32))
        self.starts: list[int] = []
        self.squares: list[float] = []
        self.used = 0
        self._found: list[TensorStats] = []

    def of(self, position: int) -> TensorStats:
        if position >= len(self._found):
            self.settle()
        return self._found[position]

    def settle(self) -> None:
        """Work out what was collected since the last time."""
        done = len(self._found)
        if self.buffer is None or done == len(self.starts):
            return
        base = self.starts[done]
        data = self.buffer[base : self.used]
        starts = np.array(self.starts[done:]) - base
        low = np.minimum.reduceat(data, starts).tolist()
        high = np.maximum.reduceat(data, starts).tolist()
        sizes = np.diff(starts, append=data.size).tolist()
        small = np.abs(data) < self._normal
        zeros = few = [0] * len(sizes)
        if small.any():
            zeros = np.add.reduceat(data == 0, starts, dtype=np.int64).tolist()
            few = np.add.reduceat(small, starts, dtype=np.int64).tolist()
        self._found += [
            TensorStats(0, 0, 0, n, a, b, b if b > -a else -a, square / n, none, less - none)
            for n, a, b, square, none, less in zip(
                sizes, low, high, self.squares[done:], zeros, few, strict=True
            )
        ]

    def close(self) -> None:
        """Settle, and give the buffer up."""
        self.settle()
        self.buffer = None


class Collector:
    """Takes the statistics of tensors as they come."""

    def __init__(self) -> None:
        self._groups: dict[torch.dtype, _Group] = {}

    def take(self, t: Tensor) -> TensorStats | Late:
        """Statistics of a tensor; of a small finite float tensor on a CPU they come later.

        Args:
            t: Any tensor. A ``Late`` result says that all elements are finite, and holds what the
                tensor holds now, whatever is written to it afterwards.
        """
        dtype = t.dtype
        if not (t.is_cpu and t.layout is torch.strided and dtype in _COLLECTED):
            return tensor_stats(t)
        size = t.numel()
        if not 0 < size <= SMALL:
            return tensor_stats(t)
        t = without_history(t)
        array = as_array(t if dtype in _WIDE else t.float()).reshape(-1)
        squares = float(np.vdot(array, array))  # dot warns where it overflows
        if not _LEAST < squares < _MOST and (squares != 0.0 or array.any()):
            return tensor_stats(t)
        group = self._groups.get(dtype)
        if group is None or group.used + size > _ROOM:
            if group is not None:
                group.close()
            group = self._groups[dtype] = _Group(dtype)
        start = group.used
        end = group.used = start + size
        buffer: Any = group.buffer
        buffer[start:end] = array
        starts = group.starts
        starts.append(start)
        group.squares.append(squares)
        return Late(group, len(starts) - 1)

    def settle(self) -> None:
        """Work out everything collected so far and give the buffers up."""
        for group in self._groups.values():
            group.close()
        self._groups.clear()


_COLLECTED: Final = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})
