"""A trace's events, kept as plain tuples while the step runs and made into objects when asked for.

Most events of a step are never looked at one by one, and an object with all its reads and writes
costs as much as a small op. What is written down within the step is therefore only what cannot be
known later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, overload

from workbench.replay.trace_arguments import DTYPE_NAMES
from workbench.replay.trace_events import Event, Read, Write

if TYPE_CHECKING:
    import torch

    from workbench.numerics.collected import Late
    from workbench.numerics.stats import TensorStats
    from workbench.replay.trace_plan import OpPlan
    from workbench.replay.trace_storage import Triple

Setting = tuple[str, str, int, str, str, bool, str, str | None, int, int | None, bool, bool]
"""An event's ``stage, phase, micro_step, where, module, in_loss, source, node, sequence,
forward_event, recomputed, user_code``; events that have the same ones share one object."""

# Places in a setting.
STAGE: Final = 0
WHERE: Final = 3
MODULE: Final = 4
IN_LOSS: Final = 5
SOURCE: Final = 6

Held = tuple[int, tuple[int, ...], tuple[str, str] | None, "Triple"]
"""What a storage holds at some time: its number, and ``producers``, ``leaf`` and ``counts`` of who
reads it."""

RawRead = tuple[str, Held, "torch.dtype", Sequence[int], bool]
"""``argument``, what was read, ``dtype``, ``shape`` and ``used`` of a ``Read``."""

RawWrite = tuple[str, int, "TensorStats | Late | None", "torch.dtype", Sequence[int]]
"""What ``Write`` is made from, in its order."""

Scalars = tuple[tuple[str, float], ...]

RawEvent = tuple[
    "OpPlan",
    Setting,
    int,
    tuple[int, str],
    Sequence[RawRead],
    Sequence["RawWrite | Write"],
    Scalars,
]
"""An event's op, setting, ``call``, ``function_call`` and ``function``, reads, writes and scalars.
The writes are a list where more of them may follow."""


class Graph(Sequence[Event]):
    """The events of a trace, in order of execution; each is made at the first look at it.

    Attributes:
        add: Adds an event.
    """

    __slots__ = ("_events", "_raw", "add")

    def __init__(self) -> None:
        self._raw: list[RawEvent] = []
        self.add = self._raw.append
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

    def setting(self, number: int) -> Setting:
        """Where an event is."""
        return self._raw[number][1]

    def op(self, number: int) -> str:
        """Name of an event's op."""
        return self._raw[number][0].name

    def wrote(self, number: int, write: RawWrite | Write) -> None:
        """Note what an event wrote that was added with a list of writes."""
        writes = self._raw[number][5]
        if isinstance(writes, list):
            writes.append(write)
        event = self._events.get(number)
        if event is not None:
            event.writes.append(_write(write))

    def written(self, number: int) -> Sequence[RawWrite | Write]:
        """What an event wrote, as it was noted."""
        return self._raw[number][5]

    def _event(self, number: int) -> Event:
        event = self._events.get(number)
        if event is None:
            event = self._events[number] = self._made(number)
        return event

    def _made(self, number: int) -> Event:
        plan, setting, call, function, reads, writes, scalars = self._raw[number]
        return Event(
            number,
            call,
            plan.name,
            plan.base,
            *setting,
            *function,
            [
                Read(label, *held, DTYPE_NAMES[dtype], tuple(shape), used)
                for label, held, dtype, shape, used in reads
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
