"""The words for stages and notes; those for verdicts are in ``evidence.summary``."""

from __future__ import annotations

from collections.abc import Mapping

SURVIVES = "Still fails with probes on."
LOST = (
    "Stops failing with probes on. What follows comes from a run that did not fail: a hint, not "
    "evidence."
)
CUDA_ON_CPU = "Recorded on CUDA; replaying on CPU under CUDA's autocast rules. Kernels differ."

CUDA_GRAPH = (
    "The step holds a captured CUDA graph. It reads the addresses it was captured with, and a "
    "restored state may have others: what it computes here need not be what the step computed. "
    "Replay the step without the graph to settle it."
)


def counts(values: Mapping[str, int]) -> str:
    """Say how many elements are non-finite, for example ``3 −Inf and 1 NaN of 8,192``."""
    names = (("nan", "NaN"), ("pos_inf", "+Inf"), ("neg_inf", "−Inf"))
    parts = [f"{values[key]:,} {word}" for key, word in names if values.get(key)]
    total = sum(values.get(key, 0) for key in ("nan", "pos_inf", "neg_inf", "finite"))
    return f"{' and '.join(parts) or 'none non-finite'} of {total:,}"


def bad(tensor: str, values: Mapping[str, int] | None, others: int = 0) -> str:
    """Say which sink of a stage is non-finite."""
    if tensor.startswith("exception:"):
        return f"An exception was raised: {tensor.removeprefix('exception:')}."
    more = f" {others:,} more non-finite." if others else ""
    return f"{tensor}: {counts(values or {})}.{more}"
