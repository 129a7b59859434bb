"""Whether a value may lie outside of a domain by rounding alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_SMALL = 1e-3
"""Of the largest operand, or of 1; half precision keeps three digits."""


def by_rounding(beyond: float, value: Tensor) -> str:
    """The end of a sentence about a value outside of a domain, where rounding can explain it.

    Args:
        beyond: How far outside it lies.
        value: All values.
    """
    finite = value[value.isfinite()]
    largest = max(1.0, float(finite.abs().max()) if finite.numel() else 1.0)
    return ", as rounding alone can make it" if abs(beyond) <= _SMALL * largest else ""
