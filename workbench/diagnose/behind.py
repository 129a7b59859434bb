"""What lies behind values that forward saved, worked out once for all of them.

Many gradients can meet many bad saved values, and a slice for each would look at the same forward
events again and again. What a slice says of an event depends on that event and on what came before
it, so it is put together event by event, in order; origins are bits of an integer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from workbench.diagnose.flow import is_conversion, mixes_finite
from workbench.diagnose.ops import MIXING, REDUCTIONS

if TYPE_CHECKING:
    from workbench.diagnose.origins import Origin
    from workbench.diagnose.slicing import _Slicer
    from workbench.replay.trace_events import Event, Read

_NEVER = 1 << 62


class _Fact(NamedTuple):
    """What is known of an event and of everything bad that leads to it.

    Attributes:
        real: Whether an origin lies at it or before it.
        overflow: Whether one of these is an overflow, which no conversion stands for.
        origins: Origins, as bits.
        replaced: Origins that a later conversion stands for, as bits.
        mixed: Whether a bad op that mixes positions is among the events.
        first: The first event.
        spread: The first reduction that was given something bad.
        mixing: The first such reduction that was given something finite too.
    """

    real: bool = False
    overflow: bool = False
    origins: int = 0
    replaced: int = 0
    mixed: bool = False
    first: int = _NEVER
    spread: int = _NEVER
    mixing: int = _NEVER


class Behind:
    """Slices of saved values that share what they have in common.

    Args:
        walker: A slicer without the cut at the loss, of the same trace.
    """

    def __init__(self, walker: _Slicer) -> None:
        self._walker = walker
        self._facts: dict[int, _Fact] = {}
        self._at: list[list[Origin]] = []
        self._taken: set[int] = set()

    def of(self, reads: list[Read]) -> tuple[list[Origin], bool]:
        """Origins of some saved values, and whether a bad op on the way mixed positions."""
        walker = self._walker
        roots, direct = walker.roots(reads)
        walker.walk(roots)
        self._work_out(roots)
        fact = _joined(self._facts[root] for root in roots)
        found = direct + self._chosen(fact)
        if roots and len(found) == len(direct):
            found += walker.spread_birth(
                [i for i in (fact.mixing, fact.spread, fact.first) if i != _NEVER]
            )
        return found, fact.mixed

    def take(self, reads: list[Read]) -> set[int]:
        """The bad events behind some saved values that were not taken before."""
        new: set[int] = set()
        stack = self._walker.roots(reads)[0]
        while stack:
            index = stack.pop()
            if index not in self._taken:
                self._taken.add(index)
                new.add(index)
                stack += self._walker.parents[index]
        return new

    def _work_out(self, roots: list[int]) -> None:
        new: set[int] = set()
        stack = list(roots)
        while stack:
            index = stack.pop()
            if index not in new and index not in self._facts:
                new.add(index)
                stack += self._walker.parents[index]
        for index in sorted(new):  # what an event read was written before it
            self._facts[index] = self._fact(index)

    def _fact(self, index: int) -> _Fact:
        walker = self._walker
        event = walker.events[index]
        own = walker.own(index)
        before = _joined(self._facts[p] for p in walker.parents[index] if p in self._facts)
        real, origins, replaced = before.real, before.origins, before.replaced
        converts = is_conversion(event)
        if converts and event.absorbs_some and not own:
            if not before.overflow:
                replaced |= origins
                origins |= self._bit([walker.conversion(index)])
            real = True
        elif own:
            origins |= self._bit(own)
            real = True
        elif not real and converts:
            origins |= self._bit([walker.conversion(index)])
            real = True
        spreads = event.base in REDUCTIONS and event.bad and bool(event.bad_reads)
        return _Fact(
            real,
            before.overflow or walker.overflowed(index),
            origins,
            replaced,
            before.mixed or _mixes(event),
            min(before.first, index),
            min(before.spread, index if spreads else _NEVER),
            min(before.mixing, index if spreads and mixes_finite(event) else _NEVER),
        )

    def _bit(self, origins: list[Origin]) -> int:
        self._at.append(origins)
        return 1 << (len(self._at) - 1)

    def _chosen(self, fact: _Fact) -> list[Origin]:
        found: list[Origin] = []
        bits = fact.origins
        while bits:
            lowest = bits & -bits
            bits ^= lowest
            origins = self._at[lowest.bit_length() - 1]
            replaced = bool(fact.replaced & lowest)
            found += [o for o in origins if not replaced or o.leaf is not None]
        return found


def _mixes(event: Event) -> bool:
    return event.base in MIXING and event.bad


def _joined(facts: Iterable[_Fact]) -> _Fact:
    real, overflow, origins, replaced, mixed = False, False, 0, 0, False
    first = spread = mixing = _NEVER
    for fact in facts:
        real, mixed = real or fact.real, mixed or fact.mixed
        overflow = overflow or fact.overflow
        origins, replaced = origins | fact.origins, replaced | fact.replaced
        first, spread = min(first, fact.first), min(spread, fact.spread)
        mixing = min(mixing, fact.mixing)
    return _Fact(real, overflow, origins, replaced, mixed, first, spread, mixing)
