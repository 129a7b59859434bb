"""Float facts: limits, counts, statistics, comparison, digests, and the strict JSON codec.

Names are loaded on first use, so that reading JSON loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.numerics.comparison import Comparison, bits_equal, compare
    from workbench.numerics.counts import Counts, all_finite, count, first_nonfinite
    from workbench.numerics.digests import mask_digest, tensor_digest
    from workbench.numerics.limits import DtypeLimits, dtype_limits, dtype_name, dtype_of
    from workbench.numerics.stats import TensorStats, stats_batch, tensor_stats

_WHERE = {
    "comparison": ("Comparison", "bits_equal", "compare"),
    "counts": ("Counts", "all_finite", "count", "first_nonfinite"),
    "digests": ("mask_digest", "tensor_digest"),
    "limits": ("DtypeLimits", "dtype_limits", "dtype_name", "dtype_of"),
    "stats": ("TensorStats", "stats_batch", "tensor_stats"),
}
_MODULE = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "Comparison",
    "Counts",
    "DtypeLimits",
    "TensorStats",
    "all_finite",
    "bits_equal",
    "compare",
    "count",
    "dtype_limits",
    "dtype_name",
    "dtype_of",
    "first_nonfinite",
    "mask_digest",
    "stats_batch",
    "tensor_digest",
    "tensor_stats",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE[name]}"), name)
    globals()[name] = value
    return value
