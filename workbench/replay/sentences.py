"""The words for verdicts, stages and conditions without effect (one place, plain English)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

NOT_REPLAYED = "Not replayed yet."
SURVIVES = "Still fails with probes on."
LOST = (
    "Stops failing with probes on. What follows comes from a run that did not fail: a hint, not "
    "evidence."
)
CUDA_ON_CPU = "Recorded on CUDA; replaying on CPU under CUDA's autocast rules. Kernels differ."


def verdict(name: str, *, distance: float | None = None, differences: Sequence[str] = ()) -> str:
    """Say a verdict in one sentence.

    Args:
        name: The verdict.
        distance: Largest relative difference of jointly finite values (``same_mask``).
        differences: What differs from the record; the first stands for all.
    """
    if name == "bitwise":
        return "Replayed exactly: same loss bits, same non-finite values."
    if name == "same_mask":
        return f"Replayed: the same elements are non-finite; {_distance(distance)}."
    if name == "same_class":
        return (
            "Replayed in kind: the same tensor goes non-finite in the same way, at other positions."
        )
    if name == "same_alert":
        return "Replayed: the same alert, all values finite."
    why = differences[0].rstrip(".") if differences else ""
    if name == "not_reproduced":
        reason = why or "nothing recorded differs from here"
        return f"Did not fail here. That does not clear the step: {reason}."
    return f"Cannot be checked here: {why or 'the record holds nothing to compare with'}."


def _distance(distance: float | None) -> str:
    if distance is None:
        return "finite values were not compared"
    if distance == 0.0:
        return "finite values are equal"
    return f"finite values differ by at most {distance:.0e} (relative)".replace("e-0", "e-")


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
