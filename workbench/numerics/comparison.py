"""Comparing two results: masks before errors."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from torch import Tensor

from workbench.numerics.counts import Counts, count, masks
from workbench.numerics.dense import as_bytes, chunks, local_values
from workbench.numerics.limits import dtype_limits, dtype_name

_KINDS: Final = ("nan", "pos_inf", "neg_inf")


@dataclass(frozen=True, slots=True)
class MaskDifference:
    """One class (NaN, +Inf or -Inf) in two tensors of the same shape.

    Attributes:
        kind: ``"nan"``, ``"pos_inf"`` or ``"neg_inf"``.
        a: Elements of this class in a.
        b: Elements of this class in b.
        both: Positions of this class in both: the overlap.
        first_a: First index in a, row-major, or None.
        first_b: First index in b.
        first_difference: First index that is of this class in one of them only.
    """

    kind: str
    a: int
    b: int
    both: int
    first_a: list[int] | None
    first_b: list[int] | None
    first_difference: list[int] | None

    @property
    def equal(self) -> bool:
        """Whether both have this class at the same positions."""
        return self.a == self.b == self.both


@dataclass(frozen=True, slots=True)
class Errors:
    """Distances at jointly finite positions.

    Attributes:
        compared: How many positions are finite in both.
        max_abs: Largest absolute error.
        max_rel: Largest relative error, ``|a - b| / max(|b|, floor)``.
        floor: Floor of the denominator.
        first: Index of the largest absolute error.
    """

    compared: int
    max_abs: float
    max_rel: float
    floor: float
    first: list[int] | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two tensors compared in the order dtype and shape, masks, errors.

    Attributes:
        dtype_a, dtype_b: Names of the dtypes.
        shape_a, shape_b: The shapes; when they differ, nothing further is compared.
        masks: NaN, +Inf and -Inf, in that order; empty when shapes differ.
        errors: a against b at jointly finite positions; None when there are none.
        reference_a, reference_b: The same against a float64 reference, when one was given.
        bitwise: Whether dtype, shape and every bit are equal.
    """

    dtype_a: str
    dtype_b: str
    shape_a: list[int]
    shape_b: list[int]
    masks: list[MaskDifference]
    errors: Errors | None
    reference_a: Errors | None
    reference_b: Errors | None
    bitwise: bool

    @property
    def same_shape(self) -> bool:
        """Whether the shapes are equal."""
        return self.shape_a == self.shape_b

    @property
    def same_masks(self) -> bool:
        """Whether shapes and all three non-finite sets are equal."""
        return self.same_shape and all(mask.equal for mask in self.masks)

    @property
    def same_kinds(self) -> bool:
        """Whether the same classes occur, wherever they are."""
        return self.same_shape and all(bool(m.a) == bool(m.b) for m in self.masks)

    def as_dict(self) -> dict[str, Any]:
        """All fields by name, plus the three answers."""
        answers = {"same_shape": self.same_shape, "same_masks": self.same_masks}
        return asdict(self) | answers | {"same_kinds": self.same_kinds}


def compare(a: Tensor, b: Tensor, reference: Tensor | None = None) -> Comparison:
    """Compare two tensors: dtype and shape, then non-finite sets, then errors.

    Args:
        a: The result under question.
        b: The result it is compared with; relative errors have its magnitude in the denominator.
        reference: A float64 result of the same shape, or None.

    Returns:
        The comparison. The denominator's floor is the smallest normal number of the narrower of
        the two dtypes, so that values that are zero up to underflow do not blow the ratio up.
    """
    a, b = _dense(a), _dense(b)
    names = (dtype_name(a.dtype), dtype_name(b.dtype))
    shapes = (list(a.shape), list(b.shape))
    if shapes[0] != shapes[1]:
        return Comparison(*names, *shapes, [], None, None, None, False)
    differences = _mask_differences(a, b)
    floor = max(_floor(a.dtype), _floor(b.dtype))
    reference_a = reference_b = None
    if reference is not None and list(reference.shape) == shapes[0]:
        exact = _dense(reference)
        reference_a = _errors(a, exact, _floor(a.dtype))
        reference_b = _errors(b, exact, _floor(b.dtype))
    errors, bitwise = _errors(a, b, floor), bits_equal(a, b)
    return Comparison(*names, *shapes, differences, errors, reference_a, reference_b, bitwise)


def bits_equal(a: Tensor, b: Tensor) -> bool:
    """Whether dtype, shape and every bit are equal, NaN payloads and signed zeros included."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.numel() == 0:
        return True
    a, b = _dense(a), _dense(b)
    return torch.equal(as_bytes(a), as_bytes(b))


def _dense(t: Tensor) -> Tensor:
    values = t.detach()
    if values.layout is not torch.strided:
        values = values.to_dense()
    local = local_values(values)
    return (values if local is None else local).resolve_conj().resolve_neg().cpu()


def _floor(dtype: torch.dtype) -> float:
    return dtype_limits(dtype).smallest_normal


def _mask_differences(a: Tensor, b: Tensor) -> list[MaskDifference]:
    counts_a, counts_b = count(a), count(b)
    if counts_a.nonfinite == 0 and counts_b.nonfinite == 0:
        return [MaskDifference(kind, 0, 0, 0, None, None, None) for kind in _KINDS]
    found = []
    for kind, mask_a, mask_b in zip(_KINDS, masks(a), masks(b), strict=True):
        found.append(
            MaskDifference(
                kind=kind,
                a=_of(counts_a, kind),
                b=_of(counts_b, kind),
                both=int((mask_a & mask_b).count_nonzero()),
                first_a=_first(mask_a),
                first_b=_first(mask_b),
                first_difference=_first(mask_a ^ mask_b),
            )
        )
    return found


def _of(counts: Counts, kind: str) -> int:
    return counts.as_dict()[kind]


def _first(mask: Tensor) -> list[int] | None:
    flat = mask.reshape(-1)
    if flat.numel() == 0 or not bool(flat.any()):
        return None
    return _index(int(flat.to(torch.uint8).argmax()), mask.shape)


def _index(flat: int, shape: torch.Size) -> list[int]:
    return [int(i) for i in torch.unravel_index(torch.tensor(flat), shape)] if shape else []


def _errors(a: Tensor, b: Tensor, floor: float) -> Errors | None:
    if a.numel() == 0:
        return None
    compared, max_abs, max_rel, first, start = 0, -1.0, -1.0, 0, 0
    for part_a, part_b in zip(chunks(a.contiguous()), chunks(b.contiguous()), strict=True):
        wide_a, wide_b = _wide(part_a), _wide(part_b)
        joint = torch.isfinite(wide_a) & torch.isfinite(wide_b)
        compared += int(joint.count_nonzero())
        # a - b of two huge values of opposite sign may itself overflow; that is a true distance.
        distance = (wide_a - wide_b).abs().masked_fill(~joint, -1.0)
        largest = float(distance.max())
        if largest > max_abs:
            max_abs, first = largest, start + int(distance.argmax())
        ratio = (distance / wide_b.abs().clamp_min(floor)).masked_fill(~joint, -1.0)
        max_rel = max(max_rel, float(ratio.max()))
        start += part_a.numel()
    if compared == 0:
        return None
    return Errors(compared, max_abs, max_rel, floor, _index(first, a.shape))


def _wide(t: Tensor) -> Tensor:
    return t.to(torch.complex128) if t.is_complex() else t.to(torch.float64)
