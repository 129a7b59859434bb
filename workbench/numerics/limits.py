"""What a dtype can hold."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from workbench.errors import UsageError

if TYPE_CHECKING:
    import torch

# Exponents only, no mantissa: every value is a power of two.
_WITHOUT_SUBNORMALS = frozenset({"float8_e8m0fnu"})


@dataclass(frozen=True, slots=True)
class DtypeLimits:
    """Limits of one dtype, as Python floats (complex dtypes: of one component).

    Attributes:
        name: The dtype's name without ``torch.``.
        max: Largest finite value.
        min: Smallest (most negative) finite value.
        smallest_normal: Smallest positive normal value; 1.0 for integers.
        smallest_subnormal: Smallest positive value; 1.0 for integers.
        eps: Distance from 1 to the next larger value; 1.0 for integers.
        floating: Whether the dtype is floating point or complex.
        has_inf: Whether it has an infinity.
        has_nan: Whether it has a NaN.
    """

    name: str
    max: float
    min: float
    smallest_normal: float
    smallest_subnormal: float
    eps: float
    floating: bool
    has_inf: bool
    has_nan: bool


def _float(name: str, high: float, normal: float, eps: float, *, inf: bool = True) -> DtypeLimits:
    return DtypeLimits(name, high, -high, normal, normal * eps, eps, True, inf, True)


def _integer(name: str, low: float, high: float) -> DtypeLimits:
    return DtypeLimits(name, high, low, 1.0, 1.0, 1.0, False, False, False)


# What is asked for by name most; a chart of ranges needs no torch for its limit lines.
_KNOWN: Final = {
    known.name: known
    for known in (
        _float("float64", 1.7976931348623157e308, 2.0**-1022, 2.0**-52),
        _float("float32", (2 - 2.0**-23) * 2.0**127, 2.0**-126, 2.0**-23),
        _float("bfloat16", (2 - 2.0**-7) * 2.0**127, 2.0**-126, 2.0**-7),
        _float("float16", 65504.0, 2.0**-14, 2.0**-10),
        _float("float8_e4m3fn", 448.0, 2.0**-6, 2.0**-3, inf=False),
        _float("float8_e5m2", 57344.0, 2.0**-14, 2.0**-2),
        _integer("int64", -(2.0**63), 2.0**63),
        _integer("int32", -(2.0**31), 2.0**31 - 1),
        _integer("int8", -128.0, 127.0),
        _integer("uint8", 0.0, 255.0),
        _integer("bool", 0.0, 1.0),
    )
}


def dtype_name(dtype: torch.dtype) -> str:
    """The dtype's name without ``torch.``."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """The dtype of that name.

    Raises:
        UsageError: No dtype has this name.
    """
    import torch

    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise UsageError(
            f"There is no dtype {name[:80]!r} in torch {torch.__version__}. "
            'Names are torch\'s own, for example "float16" or "bfloat16".'
        )
    return found


def dtype_limits(dtype: torch.dtype | str) -> DtypeLimits:
    """The limits of a dtype.

    Args:
        dtype: A torch dtype or its name, with or without ``torch.``.

    Raises:
        UsageError: No dtype has this name.
    """
    known = _KNOWN.get(dtype.removeprefix("torch.")) if isinstance(dtype, str) else None
    return known or _limits(dtype_of(dtype) if isinstance(dtype, str) else dtype)


@cache
def _limits(dtype: torch.dtype) -> DtypeLimits:
    import torch

    name = dtype_name(dtype)
    if dtype == torch.bool:
        return DtypeLimits(name, 1.0, 0.0, 1.0, 1.0, 1.0, False, False, False)
    if not (dtype.is_floating_point or dtype.is_complex):
        return _integer_limits(dtype, name)
    try:
        info = torch.finfo(dtype)
        high, low, smallest = float(info.max), float(info.min), float(info.smallest_normal)
    except (TypeError, NotImplementedError, RuntimeError):
        # float4_e2m1fn_x2 holds two values a byte; torch answers none of these for it.
        return DtypeLimits(name, 6.0, -6.0, 1.0, 0.5, 0.5, True, False, False)
    eps = float(info.eps)
    return DtypeLimits(
        name=name,
        max=high,
        min=low,
        smallest_normal=smallest,
        smallest_subnormal=smallest if name in _WITHOUT_SUBNORMALS else smallest * eps,
        eps=eps,
        floating=True,
        has_inf=not name.endswith(("fn", "fnuz", "fnu")),
        has_nan=True,
    )


def _integer_limits(dtype: torch.dtype, name: str) -> DtypeLimits:
    import torch

    try:
        info = torch.iinfo(dtype)
        high, low = float(info.max), float(info.min)
    except (TypeError, RuntimeError):  # bit-packed and sub-byte dtypes
        high, low = 1.0, 0.0
    return DtypeLimits(name, high, low, 1.0, 1.0, 1.0, False, False, False)
