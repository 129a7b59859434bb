"""The words for stages and notes; those for verdicts are in ``evidence.verdicts``."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.evidence.wording import count_words, number

CUDA_ON_CPU = "Recorded on CUDA; replaying on CPU under CUDA's autocast rules. Kernels differ."

CUDA_GRAPH = (
    "The step holds a captured CUDA graph. It reads the addresses it was captured with, and a "
    "restored state may have others: what it computes here need not be what the step computed. "
    "Replay the step without the graph to settle it."
)


def bad(tensor: str, values: Mapping[str, int] | None, others: int = 0) -> str:
    """Say which sink of a stage is non-finite."""
    if tensor.startswith("exception:"):
        return f"An exception was raised: {tensor.removeprefix('exception:')}."
    more = f" {number(others)} more non-finite." if others else ""
    return f"{tensor}: {count_words(values) if values else 'non-finite'}.{more}"
