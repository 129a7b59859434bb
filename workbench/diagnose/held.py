"""State that holds infinities as constants: no op of the step made them.

A buffer that is reset to Inf, a state that starts at Inf, a parameter that holds -Inf where
attention is forbidden: what the code itself placed is taken as meant until something converts or
mixes it (DESIGN section 7, rule 3).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.diagnose.flow import is_conversion, scalar_producer
from workbench.diagnose.ops import PLACING, REDUCTIONS
from workbench.evidence.wording import MINUS, joined

if TYPE_CHECKING:
    from workbench.diagnose.origins import Origin
    from workbench.diagnose.slicing import Start, _Slicer
    from workbench.replay.trace_events import Event

_STATE = ("parameter:", "buffer:", "optimizer_state:")


@dataclass(frozen=True, slots=True)
class Held:
    """State that holds a constant which is not finite.

    Attributes:
        name: The sink's name.
        counts: Its NaN, +Inf and -Inf.
        event: The event that placed the constant; None where it was there before the step.
    """

    name: str
    counts: tuple[int, int, int]
    event: int | None


def held_constants(walker: _Slicer, starts: Sequence[Start]) -> list[Held]:
    """What is held, where that is all there is to say of the sinks; else nothing.

    Args:
        walker: A slicer that has walked back from the starts.
        starts: The bad sinks.
    """
    found: list[Held] = []
    for start in starts:
        if not start.name.startswith(_STATE):
            return []
        reached = walker.reached(start)
        if not all(_placed(walker, start, walker.events[index]) for index in reached):
            return []
        if not reached and not _made_of_numbers(start) and not _was_mask(start):
            return []
        if start.name.startswith("parameter:") and not _unchanged(walker, start, reached):
            return []
        placed = [i for i in sorted(reached) if _places(walker.events[i])]
        found.append(Held(start.name, start.counts, placed[0] if placed else None))
    return found


def sentence(held: Held, events: Sequence[Event]) -> str:
    """Say what a sink holds, and that no op made it."""
    name = held.name.replace(":", " ", 1).replace("optimizer_state", "optimizer state")
    words = zip(held.counts, ("NaN", "+Inf", f"{MINUS}Inf"), strict=True)
    what = joined([word for number, word in words if number])
    if held.event is not None:
        event = events[held.event]
        line = f" at {event.source}" if event.source else ""
        return (
            f"No op computed it: the code itself put {what} into {name} ({event.op}{line}), and "
            "nothing else that is gated is non-finite. Taken as meant."
        )
    if held.name.startswith("parameter:"):
        return (
            f"No op computed it: {name} held the same {what} before the step, and nothing else "
            "that is gated is non-finite. Taken as a mask."
        )
    return (
        f"No op computed it: {name} holds {what} that the code made of a number, and nothing else "
        "that is gated is non-finite. Taken as meant."
    )


def _placed(walker: _Slicer, start: Start, event: Event) -> bool:
    """Whether an event on the way placed a constant or passed one on."""
    if is_conversion(event) or event.base in REDUCTIONS:
        return False
    if any(not _may_hold(read.leaf, start) for read in event.bad_reads):
        return False
    if event.base not in PLACING and any(not math.isfinite(v) for _, v in event.scalars):
        return False
    return all(_is_sentinel(walker, start, origin) for origin in walker.own(event.index))


def _may_hold(leaf: tuple[str, str] | None, start: Start) -> bool:
    """Whether a leaf is a constant of the code, or the start itself; no optimizer state is."""
    if leaf is None or leaf[0] == "captured_tensor":
        return True
    return not _is_state(leaf) and leaf[1] == start.name.partition(":")[2]


def _is_state(leaf: tuple[str, str] | None) -> bool:
    return leaf is not None and leaf[0] == "poisoned_optimizer_state"


def _is_sentinel(walker: _Slicer, start: Start, origin: Origin) -> bool:
    """Whether an origin is NaN that the code put into a buffer as it is.

    A number that the step read out of a bad tensor before it is none the code chose.
    """
    if origin.kind != "nonfinite_scalar" or not start.name.startswith("buffer:"):
        return False
    places = walker.events[origin.event].base in PLACING
    return places and scalar_producer(walker.events, origin.event) is None


def _places(event: Event) -> bool:
    """Whether an event took its constant from a number."""
    if event.base not in PLACING:
        return False
    numbers = any(not math.isfinite(value) for _, value in event.scalars)
    return numbers or any(r.leaf and r.leaf[0] == "captured_tensor" for r in event.bad_reads)


def _made_of_numbers(start: Start) -> bool:
    """Whether the step made a tensor of a number, which no op is seen to do: torch.tensor(inf)."""
    return start.leaf == ("captured_tensor", start.name) and not start.counts[0]


def _was_mask(start: Start) -> bool:
    """Whether it was only -Inf before the step already, and is no optimizer state."""
    nan, pos_inf, _ = start.counts
    return not nan and not pos_inf and start.leaf is not None and not _is_state(start.leaf)


def _unchanged(walker: _Slicer, start: Start, reached: Collection[int]) -> bool:
    """Whether a parameter had as many -Inf, and nothing else, before the update that wrote it."""
    leaf = ("poisoned_parameter", start.name.partition(":")[2])
    if start.counts[0] or start.counts[1]:
        return False
    reads = [r for i in reached for r in walker.events[i].bad_reads if r.leaf == leaf]
    return not reached or any(read.counts == start.counts for read in reads)
