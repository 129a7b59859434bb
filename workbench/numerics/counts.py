"""How many elements are NaN, +Inf, -Inf and finite, exactly."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from workbench.numerics.arrays import dot
from workbench.numerics.dense import (
    NATIVE,
    PLAIN,
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
)

_PIECE: Final = 65_536
_DEVICE_CHUNK: Final = 1 << 24  # elements; masks of larger pieces would crowd the device


class Counts(NamedTuple):
    """Elements by class. A complex element counts once: NaN before +Inf before -Inf."""

    nan: int = 0
    pos_inf: int = 0
    neg_inf: int = 0
    finite: int = 0

    @property
    def nonfinite(self) -> int:
        """NaN and infinities together."""
        return self.nan + self.pos_inf + self.neg_inf

    @property
    def total(self) -> int:
        """All elements."""
        return self.nan + self.pos_inf + self.neg_inf + self.finite

    @property
    def kind(self) -> str | None:
        """The worst class present: ``"nan"``, ``"+inf"``, ``"-inf"`` or None."""
        if self.nan:
            return "nan"
        if self.pos_inf:
            return "+inf"
        return "-inf" if self.neg_inf else None

    def as_dict(self) -> dict[str, int]:
        """The four counts by name."""
        return self._asdict()

    def __add__(self, other: object) -> Counts:
        """Element-wise sum, for merging shards or chunks."""
        if not isinstance(other, Counts):
            return NotImplemented
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))


def count(t: Tensor) -> Counts:
    """Count the elements of a tensor by class.

    Args:
        t: Any shape, dtype, layout and device. Integer, bool and quantised tensors are finite
            throughout. Sparse tensors count their implicit zeros as finite. Distributed tensors
            count their local part, nested ones what they hold. Tensors without values (meta) count
            nothing: ``total`` is 0.

    Returns:
        Exact counts.
    """
    values = local_values(t)
    if values is None:
        return Counts(finite=t.numel() if t.is_quantized else 0)
    total = values.numel() if hasattr(t, "to_local") or t.is_nested else t.numel()
    if values.numel() == 0 or not can_be_nonfinite(values.dtype):
        return Counts(finite=total)
    if values.dtype in NATIVE and ends_finite(values):
        return Counts(finite=total)
    bad = nonfinite_counts(values)
    return bad._replace(finite=total - bad.nonfinite)


def ends_finite(values: Tensor) -> bool:
    """Whether all elements of a non-empty native float tensor are finite; exact, one pass."""
    if values.dtype is torch.float32 and values.is_cpu and values.numel() <= _PIECE:
        squares = _squares(values)
        if squares is not None and math.isfinite(squares):
            return True
    values = dense_order(values)
    # Nothing that is not finite leaves a sum again. Finite values can overflow it too (in float16
    # as a matter of course), and then the ends decide.
    if values.dtype is not torch.float16 and math.isfinite(values.sum().item()):
        return True
    low, high = torch.aminmax(values)
    return math.isfinite(low.item()) and math.isfinite(high.item())


def _squares(values: Tensor) -> float | None:
    """Sum of squares of a few float32 values, which costs half of what a sum by torch does."""
    if values.is_neg() or is_snapshot(values):
        return None
    try:
        array = as_array(values).ravel("K")
    except RuntimeError:  # what a functorch transform wraps has no memory of its own
        return None
    return float(dot(array, array))


def nonfinite_counts(values: Tensor) -> Counts:
    """NaN, +Inf and -Inf of dense values of any float or complex dtype; ``finite`` stays 0."""
    values = dense_order(values)
    if values.device.type == "cpu" and not values.is_complex():
        return _count_arrays(values)
    nan = pos_inf = neg_inf = 0
    for part in chunks(values, _DEVICE_CHUNK):
        # One host read a chunk, not one a mask.
        found = torch.stack([mask.count_nonzero() for mask in masks(part)]).tolist()
        nan, pos_inf, neg_inf = nan + found[0], pos_inf + found[1], neg_inf + found[2]
    return Counts(nan, pos_inf, neg_inf)


def _count_arrays(values: Tensor) -> Counts:
    nan = pos_inf = neg_inf = 0
    for array in float_arrays(values):
        mask = scratch.mask[: array.size]
        nan += int(np.count_nonzero(np.isnan(array, out=mask)))
        pos_inf += int(np.count_nonzero(np.equal(array, np.inf, out=mask)))
        neg_inf += int(np.count_nonzero(np.equal(array, -np.inf, out=mask)))
    return Counts(nan, pos_inf, neg_inf)


def masks(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """NaN, +Inf and -Inf masks (bool, the tensor's shape) of a dense tensor."""
    if not can_be_nonfinite(t.dtype):
        none = torch.zeros(t.shape, dtype=torch.bool, device=t.device)
        return none, none, none
    if t.is_complex():
        return _complex_masks(real_view(t))
    wide = countable(t)
    return wide != wide, wide == math.inf, wide == -math.inf


def _complex_masks(pairs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    nan = (pairs != pairs).any(-1)
    pos_inf = (pairs == math.inf).any(-1) & ~nan
    neg_inf = (pairs == -math.inf).any(-1) & ~nan & ~pos_inf
    return nan, pos_inf, neg_inf


def all_finite(tensors: Iterable[Tensor | None], *, in_place: bool = False) -> bool:
    """Whether every element of every tensor is finite: the cheap gate, and exact.

    One pass over the data; on accelerators one host read per device.

    Args:
        tensors: Any tensors; None is skipped.
        in_place: Allow a kernel that is cheaper still for many small tensors and writes every value
            back unchanged. Only for tensors of which no copy-on-write snapshot is held, since
            writing ends the sharing.

    Returns:
        True when no element is NaN or infinite.
    """
    groups: _Groups = {}
    for t in tensors:
        if t is None:
            continue
        if t.dtype not in NATIVE or t.layout is not torch.strided or type(t) not in PLAIN:
            if can_be_nonfinite(t.dtype) and count(t).nonfinite:
                return False
            continue
        if t.requires_grad:
            t = t.detach()  # noqa: PLW2901 - the same values
        if in_place or not t.is_cpu:
            if t.device.type != "meta":
                groups.setdefault((t.device, t.dtype), []).append(t)
        elif t.numel() and not ends_finite(t):
            return False
    if not groups:
        return True
    return _scan_in_place(groups) if in_place else _scan(groups)


_Groups = dict[tuple[torch.device, torch.dtype], list[Tensor]]


def _scan(groups: _Groups) -> bool:
    suspects: list[Tensor] = []
    per_device: dict[torch.device, tuple[list[Tensor], list[list[Tensor]]]] = {}
    for (device, _), members in groups.items():
        filled = [t for t in members if t.numel()]
        if not filled:
            continue
        # A sum of norms is finite only if every norm is; a norm only if every element is.
        total = torch.stack(torch._foreach_norm(filled)).sum(dtype=torch.float64)
        totals, lists = per_device.setdefault(device, ([], []))
        totals.append(total)
        lists.append(filled)
    for totals, lists in per_device.values():
        for value, members in zip(torch.stack(totals).tolist(), lists, strict=True):
            # The norm of finite values can overflow too: these are looked at one by one.
            suspects += [] if math.isfinite(value) else members
    return all(ends_finite(t) for t in suspects)


def _scan_in_place(groups: _Groups) -> bool:
    flags: dict[torch.device, Tensor] = {}
    for (device, _), members in groups.items():
        flag = flags.get(device)
        if flag is None:
            flag = flags[device] = torch.zeros((), dtype=torch.float32, device=device)
        one = torch.ones((), dtype=torch.float32, device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(members, flag, one)
    return all(flag.item() == 0.0 for flag in flags.values())


def first_nonfinite(t: Tensor) -> list[int] | None:
    """Index of the first non-finite element in row-major order, or None.

    Args:
        t: Any tensor; of a sparse tensor the index among its stored values is meant first, and its
            coordinates are returned.
    """
    values = local_values(t)
    if values is None or values.numel() == 0 or not can_be_nonfinite(values.dtype):
        return None
    if values.dtype in NATIVE and ends_finite(values):
        return None
    if t.layout is torch.sparse_coo:
        return _first_sparse(t.detach().coalesce())
    if t.layout is not torch.strided:
        return first_nonfinite(t.detach().to_dense())
    flat_index = 0
    for part in chunks(values):
        nan, pos_inf, neg_inf = masks(part)
        bad = nan | pos_inf | neg_inf
        if bool(bad.any()):
            flat_index += int(bad.to(torch.uint8).argmax())
            return _unravel(flat_index, tuple(values.shape))
        flat_index += part.numel()
    return None


def _first_sparse(t: Tensor) -> list[int] | None:
    inner = first_nonfinite(t.values())
    if inner is None:
        return None
    return [int(i) for i in t.indices()[:, inner[0]].tolist()] + inner[1:]


def _unravel(flat: int, shape: tuple[int, ...]) -> list[int]:
    index: list[int] = []
    for size in reversed(shape):
        flat, rest = divmod(flat, size)
        index.append(rest)
    return index[::-1]
