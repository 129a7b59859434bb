"""Float facts: limits, counts, statistics, comparison, digests, and the strict JSON codec.

Names are loaded on first use, so that reading JSON loads no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.lazy import names_on_first_use

if TYPE_CHECKING:
    from workbench.numerics.comparison import Comparison, bits_equal, compare
    from workbench.numerics.counts import Counts, all_finite, count, first_nonfinite
    from workbench.numerics.digests import mask_digest, tensor_digest
    from workbench.numerics.limits import DtypeLimits, dtype_limits, dtype_name, dtype_of
    from workbench.numerics.stats import TensorStats, stats_batch, tensor_stats

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

__getattr__ = names_on_first_use(
    __name__,
    {
        "comparison": ("Comparison", "bits_equal", "compare"),
        "counts": ("Counts", "all_finite", "count", "first_nonfinite"),
        "digests": ("mask_digest", "tensor_digest"),
        "limits": ("DtypeLimits", "dtype_limits", "dtype_name", "dtype_of"),
        "stats": ("TensorStats", "stats_batch", "tensor_stats"),
    },
)
