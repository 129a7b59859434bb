"""Statistics of many small tensors, worked out for a whole group at once.

One call of any kernel on a few thousand elements costs more than the arithmetic. Small tensors are
therefore copied one after the other into a buffer, which later writes to them cannot change, and
ends, zeros and subnormals of all of them are found in a few calls. What must be known at once is:
whether everything is finite.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from workbench.numerics.arrays import SAFE_SUM_HIGH, SAFE_SUM_LOW, dot
from workbench.numerics.dense import PLAIN, Array, as_array, is_snapshot, without_history
from workbench.numerics.stats import (
    SMALL as ONE_LOOK,
)
from workbench.numerics.stats import (
    TensorStats,
    finite_stats,
    tensor_stats,
    typed_normal,
)

SMALL: Final = 8_192
"""Elements up to which a tensor is collected; of larger ones the arithmetic costs more."""

_ROOM: Final = 65_536
_FEW: Final = 32
_IN_PLACE: Final = frozenset({torch.float32, torch.float64})
_WIDENED: Final = frozenset({torch.float16, torch.bfloat16})

_new_tuple = tuple.__new__


class Late:
    """Statistics of one collected tensor, worked out when first asked for."""

    __slots__ = ("_group", "_position")

    def __init__(self, group: _Group, position: int) -> None:
        self._group = group
        self._position = position

    def now(self) -> TensorStats:
        """The statistics, exactly as ``tensor_stats`` gave them of the tensor at that time."""
        return self._group.of(self._position)


class _Room:
    """A buffer for elements of one size, and one for their magnitudes."""

    __slots__ = ("data", "sizes")

    def __init__(self, kind: Any) -> None:
        self.data: Array = np.empty(_ROOM, dtype=kind)
        self.sizes: Array = np.empty(_ROOM, dtype=kind)


class _Group:
    """Tensors of one dtype that share a buffer until it is full."""

    __slots__ = ("_found", "_normal", "buffer", "room", "squares", "starts", "used")

    def __init__(self, dtype: torch.dtype, room: _Room | None = None) -> None:
        self._normal: Any = typed_normal(dtype)
        self.room = room or _Room(np.float64 if dtype is torch.float64 else np.float32)
        self.buffer: Array | None = self.room.data
        self.starts: list[int] = []
        self.squares: list[float] = []
        self.used = 0
        self._found: list[TensorStats] = []

    def add(self, array: Array, squares: float) -> Late:
        """Copy a flat array in, for which there is room."""
        start = self.used
        self.used = end = start + array.size
        self.room.data[start:end] = array
        starts = self.starts
        starts.append(start)
        self.squares.append(squares)
        return Late(self, len(starts) - 1)

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
        low = np.minimum.reduceat(data, starts)
        high = np.maximum.reduceat(data, starts)
        ends = np.append(starts[1:], data.size)
        size = np.abs(data, out=self.room.sizes[: data.size])
        small = np.flatnonzero(np.minimum.reduceat(size, starts) < self._normal)
        zeros, few = self._below_normal(size, starts, ends, small)
        self._found += [
            _new_tuple(
                TensorStats, (0, 0, 0, n, a, b, b if b > -a else -a, square / n, none, less - none)
            )
            for n, a, b, square, none, less in zip(
                (ends - starts).tolist(),
                low.tolist(),
                high.tolist(),
                self.squares[done:],
                zeros,
                few,
                strict=True,
            )
        ]

    def _below_normal(
        self, size: Array, starts: Array, ends: Array, small: Array
    ) -> tuple[list[int], list[int]]:
        """Zeros, and elements below the normal numbers, of each tensor of which some are."""
        if small.size > _FEW:
            few = np.add.reduceat(size < self._normal, starts, dtype=np.int64)
            zeros = np.add.reduceat(size == 0, starts, dtype=np.int64)
            return zeros.tolist(), few.tolist()
        none, less = [0] * starts.size, [0] * starts.size
        for number in small.tolist():
            part = size[starts[number] : ends[number]]
            less[number] = int(np.count_nonzero(part < self._normal))
            none[number] = int(np.count_nonzero(part == 0))
        return none, less

    def close(self) -> _Room:
        """Settle, and give the buffer up."""
        self.settle()
        self.buffer = None
        return self.room


class Collector:
    """Takes the statistics of tensors as they come."""

    def __init__(self) -> None:
        self._groups: dict[torch.dtype, _Group] = {}

    def quick(self, t: Tensor) -> TensorStats | Late | None:
        """What ``take`` gives of a finite tensor, where no op has to be executed for it; else None.

        Args:
            t: Any tensor.
        """
        dtype = t.dtype
        if dtype not in _IN_PLACE or not t.is_cpu or t.layout is not torch.strided:
            return None
        size = t.numel()
        if not 0 < size <= ONE_LOOK or is_snapshot(t) or t.is_neg():
            return None
        if t.requires_grad:
            if type(t) not in PLAIN:
                return None
            t = t.data
        try:
            array = t.numpy().ravel("K")
        except RuntimeError:  # what a functorch transform wraps has no memory of its own
            return None
        return self._added(dtype, array) if size <= SMALL else finite_stats(array, dtype)

    def fresh(self, t: Tensor, dtype: torch.dtype) -> TensorStats | Late | None:
        """What ``quick`` gives, of a tensor that an op has just made and that has no history.

        Args:
            t: The tensor.
            dtype: Its dtype.
        """
        if dtype not in _IN_PLACE or not t.is_cpu:
            return None
        try:
            array = t.numpy()
        except (RuntimeError, TypeError):  # sparse, negated, without memory of its own
            return None
        size = array.size
        if not 0 < size <= ONE_LOOK:
            return None
        array = array.ravel("K")
        return self._added(dtype, array) if size <= SMALL else finite_stats(array, dtype)

    def take(self, t: Tensor) -> TensorStats | Late:
        """Statistics of a tensor; of a small finite float tensor on a CPU they come later.

        Args:
            t: Any tensor. A ``Late`` result says that all elements are finite, and holds what the
                tensor holds now, whatever is written to it afterwards.
        """
        dtype = t.dtype
        narrow = dtype in _WIDENED
        if (narrow or dtype in _IN_PLACE) and t.is_cpu and t.layout is torch.strided:
            size = t.numel()
            if 0 < size <= SMALL:
                plain = without_history(t)
                array = as_array(plain.float() if narrow else plain).ravel("K")
                found = self._added(dtype, array)
                if found is not None:
                    return found
        return tensor_stats(t)

    def _added(self, dtype: torch.dtype, array: Array) -> Late | None:
        """Collect a flat array; None where its squares do not say that it is finite."""
        squares = float(dot(array, array))
        if not SAFE_SUM_LOW < squares < SAFE_SUM_HIGH and (squares != 0.0 or array.any()):
            return None
        group = self._groups.get(dtype)
        if group is None:
            group = self._groups[dtype] = _Group(dtype)
        elif group.used + array.size > _ROOM:
            group = self._groups[dtype] = _Group(dtype, group.close())
        return group.add(array, squares)

    def settle(self) -> None:
        """Work out everything collected so far and give the buffers up."""
        for group in self._groups.values():
            group.close()
        self._groups.clear()
