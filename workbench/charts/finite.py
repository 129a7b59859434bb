"""Reductions over the finite elements of an array, with a count of what was left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Reduced:
    """A reduction over the finite elements of an array, and what was left out.

    Attributes:
        value: The result, None when no element is finite.
        finite: Number of elements it was taken over.
        nan: Number of NaN left out.
        pos_inf: Number of +Inf left out.
        neg_inf: Number of −Inf left out.
    """

    value: float | None
    finite: int
    nan: int
    pos_inf: int
    neg_inf: int


def reduce_finite(values: npt.ArrayLike, how: Literal["min", "max", "mean"]) -> Reduced:
    """Reduce the finite elements of an array and count the others."""
    array = np.asarray(values, dtype=np.float64)
    finite = array[np.isfinite(array)]
    value: float | None = None
    if finite.size:
        result = {"min": finite.min(), "max": finite.max(), "mean": finite.mean()}[how]
        value = float(result)
    return Reduced(
        value,
        int(finite.size),
        int(np.isnan(array).sum()),
        int(np.isposinf(array).sum()),
        int(np.isneginf(array).sum()),
    )
