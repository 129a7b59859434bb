"""Facts about single events and about the flow of gradients that slicing rests on."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from workbench.diagnose.ops import FINITE_EVERYWHERE, SEEDS

if TYPE_CHECKING:
    from workbench.replay.trace_events import Event, Read


def is_conversion(event: Event) -> bool:
    """Whether an event made NaN out of infinities."""
    reads = event.bad_reads
    made_nan = any(write.counts[0] for write in event.writes)
    return bool(reads) and made_nan and not any(read.counts[0] for read in reads)


def gradient_events(events: Sequence[Event]) -> set[int]:
    """Find the backward events that carry a gradient, not only saved values."""
    found: set[int] = set()
    for event in events:
        if event.stage not in ("backward", "reduce", "unscale", "clip", "update", "after_update"):
            continue
        seed = event.node is None and event.stage == "backward" and event.base in SEEDS
        if seed or any(p in found for read in event.reads for p in read.producers):
            found.add(event.index)
    return found


def scalar_producer(events: Sequence[Event], index: int) -> int | None:
    """The op whose result last left the tensor world as a non-finite Python number."""
    for event in reversed(events[:index]):
        if event.base == "_local_scalar_dense" and event.bad_reads:
            producers = event.bad_reads[0].producers
            return producers[0] if producers else event.index
    return None


def overflows(event: Event) -> bool:
    """Whether an Inf born at an event can only have left its dtype's range.

    Such an Inf is never meant, unlike that of ``log(0)``, so nothing later stands for it.
    """
    base = event.base.removeprefix("_foreach_").rstrip("_")
    if base == "pow":
        powers = [value for name, value in event.scalars if name == "exponent"]
        return bool(powers) and powers[0] >= 0
    return base in FINITE_EVERYWHERE


def converts_saved_minus_inf(event: Event, gradients: Collection[int]) -> bool:
    """Whether an event of backward made NaN of nothing but saved -Inf, as -Inf - (-Inf) does.

    Forward used each of them as intended, or the loss would not be finite.

    Args:
        event: The event.
        gradients: Numbers of the events that carry a gradient.
    """
    if event.node is None or event.recomputed or not is_conversion(event):
        return False
    if event.index in gradients:
        return False
    return not any(read.counts[1] for read in event.bad_reads)


def hides(event: Event, read: Read) -> bool:
    """Whether a read is the mask of an attention whose kernel adds it to the scores.

    Its -Inf is meant, and only ``exp`` of it is used. A row that is masked everywhere shows in the
    log-sum-exp that forward kept.
    """
    return (
        "attention" in event.base
        and read.argument in ("attn_mask", "attn_bias")
        and not any(read.counts[:2])
    )


def mixes_finite(event: Event) -> bool:
    """Whether an op that read something non-finite read finite elements too."""
    return any(read.used and math.prod(read.shape) > sum(read.counts) for read in event.reads)


def scales_what_is_learned(events: Sequence[Event], event: Event) -> bool:
    """Whether an event multiplies, by a number, a gradient or what a parameter went into.

    A mask may be made by multiplying ones by -Inf, but depends on a parameter by comparisons only.
    """
    if event.base.rstrip("_") not in _PRODUCTS:
        return False
    if event.node is not None and not event.recomputed:
        return True
    seen: set[int] = set()
    stack = [event.index]
    while stack:
        index = stack.pop()
        if not any(write.dtype.startswith(_CONTINUOUS) for write in events[index].writes):
            continue  # a comparison: what it chooses is no longer learned
        for read in events[index].reads:
            if read.leaf is not None and read.leaf[0] == "poisoned_parameter":
                return True
            stack += [p for p in read.producers if p not in seen]
            seen.update(read.producers)
    return False


_PRODUCTS = frozenset("mul div".split())
_CONTINUOUS = ("float", "bfloat", "complex")
