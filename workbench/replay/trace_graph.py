"""A trace's events, kept as plain tuples while the step runs and made into objects when asked for.

Most events of a step are never looked at one by one, and an object with all its reads and writes
costs as much as a small op. What is written down within the step is therefore only what cannot be
known later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, overload

from workbench.replay.trace_arguments import DTYPE_NAMES
from workbench.replay.trace_events import Event, Read, Write

if TYPE_CHECKING:
    import torch

    from workbench.numerics.collected import Late
    from workbench.numerics.stats import TensorStats
    from workbench.replay.trace_plan import OpPlan
    from workbench.replay.trace_storage import Triple

Head = tuple[
    int, str, str, int, str, str, bool, str, str | None, int, int | None, bool, bool, int, str
]
"""An event's ``call, stage, phase, micro_step, where, module, in_loss, source, node, sequence,
forward_event, recomputed, user_code, function_call, function``."""

# Places in a head.
STAGE: Final = 1
WHERE: Final = 4
MODULE: Final = 5
IN_LOSS: Final = 6
SOURCE: Final = 7

RawRead = tuple[
    str, int, tuple[int, ...], tuple[str, str] | None, "Triple", "torch.dtype", Sequence[int], bool
]
"""What ``Read`` is made from, in its order."""

RawWrite = tuple[str, int, "TensorStats | Late | None", "torch.dtype", Sequence[int]]
"""What ``Write`` is made from, in its order."""

Scalars = tuple[tuple[str, float], ...]


class Graph(Sequence[Event]):
    """The events of a trace, in order of execution; each is made at the first look at it."""

    __slots__ = ("_events", "_raw")

    def __init__(self) -> None:
        self._raw: list[tuple[OpPlan, Head, list[RawRead], list[Any], Scalars]] = []
        self._events: dict[int, Event] = {}

    def __len__(self) -> int:
        """Number of events."""
        return len(self._raw)

    @overload
    def __getitem__(self, index: int) -> Event: ...

    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...

    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        """One event by its number, or a list of several."""
        if isinstance(index, slice):
            return [self._event(number) for number in range(*index.indices(len(self._raw)))]
        return self._event(
            range(len(self._raw))[index]
        )  # which takes negative numbers, and refuses

    def __iter__(self) -> Iterator[Event]:
        """All events, also those that are added meanwhile."""
        number = 0
        while number < len(self._raw):
            yield self._event(number)
            number += 1

    def add(
        self, plan: OpPlan, head: Head, reads: list[RawRead], writes: list[Any], scalars: Scalars
    ) -> None:
        """Add an event; ``writes`` may be filled up to the time when the event is looked at."""
        self._raw.append((plan, head, reads, writes, scalars))

    def head(self, number: int) -> Head:
        """Where an event is."""
        return self._raw[number][1]

    def op(self, number: int) -> str:
        """Name of an event's op."""
        return self._raw[number][0].name

    def wrote(self, number: int, write: RawWrite | Write) -> None:
        """Note what an event wrote."""
        self._raw[number][3].append(write)
        event = self._events.get(number)
        if event is not None:
            event.writes.append(_write(write))

    def written(self, number: int) -> list[RawWrite | Write]:
        """What an event wrote, as it was noted."""
        return self._raw[number][3]

    def _event(self, number: int) -> Event:
        event = self._events.get(number)
        if event is None:
            event = self._events[number] = self._made(number)
        return event

    def _made(self, number: int) -> Event:
        plan, head, reads, writes, scalars = self._raw[number]
        return Event(
            number,
            head[0],
            plan.name,
            plan.base,
            *head[1:],
            [
                Read(label, storage, made, leaf, counts, DTYPE_NAMES[dtype], tuple(shape), used)
                for label, storage, made, leaf, counts, dtype, shape, used in reads
            ],
            [_write(write) for write in writes],
            scalars,
            plan.view,
            plan.uninitialised,
            plan.fills_constant,
        )


def _write(write: RawWrite | Write) -> Write:
    if isinstance(write, Write):
        return write
    slot, storage, stats, dtype, shape = write
    return Write(slot, storage, stats, DTYPE_NAMES[dtype], tuple(shape))
