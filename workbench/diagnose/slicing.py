"""Slice a trace backward from what broke to where the bad value was born.

The first non-finite tensor in time is often an intended mask; what counts is what reaches the sink
(DESIGN section 7, rules 2 to 4). Walking is linear in the events visited.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.diagnose.behind import Behind
from workbench.diagnose.flow import (
    converts_saved_minus_inf,
    gradient_events,
    hides,
    is_conversion,
    mixes_finite,
    overflows,
    scalar_producer,
    scales_what_is_learned,
)
from workbench.diagnose.held import held_constants
from workbench.diagnose.ops import MIXING, REDUCTIONS
from workbench.diagnose.origins import Origin as Origin
from workbench.diagnose.origins import Slice as Slice

if TYPE_CHECKING:
    from workbench.replay.trace import Trace
    from workbench.replay.trace_events import Event, Read

_CONSTANT = "constant"
UNNAMED = "tensor seen at"
"""How a trace calls a tensor that is none of the step's known ones and that no traced op made."""


def slice_trace(
    trace: Trace, starts: Iterable[Start] | None = None, *, cut: bool | None = None
) -> Slice:
    """Walk back from the sinks of a trace.

    Args:
        trace: The trace.
        starts: Where to start instead of at the trace's own sinks.
        cut: Whether to stay within backward where gradients carry the badness; None means
            exactly when the loss is finite (DESIGN rule 2, *Cut*).

    Returns:
        The slice; its ``origins`` are empty when nothing bad reaches a sink.
    """
    if starts is None:
        starts = [Start(s.producers, s.leaf, s.counts, s.name) for s in trace.sinks]
    return _Slicer(trace, trace.loss_finite if cut is None else cut).run(list(starts))


@dataclass(frozen=True, slots=True)
class Start:
    """One tensor to start from."""

    producers: tuple[int, ...]
    leaf: tuple[str, str] | None
    counts: tuple[int, int, int]
    name: str = ""


class _Slicer:
    def __init__(self, trace: Trace, cut: bool) -> None:
        self.trace = trace
        self.events = trace.graph
        self.cut = cut
        self.gradients = gradient_events(trace.graph) if self.cut else set()
        # a number written in the code (t[0] = inf, torch.tensor(inf)) becomes a tensor unseen
        self.literals = {
            read.storage for e in trace.graph if e.base == "lift_fresh" for read in e.reads
        }
        self.visited: set[int] = set()
        self.sources: dict[int, list[Origin | str]] = {}
        self.parents: dict[int, list[int]] = {}
        self.saved: dict[int, list[Read]] = {}

    def run(self, starts: list[Start]) -> Slice:
        roots: list[int] = []
        direct: list[Origin] = []
        for start in starts:
            bad = self._bad_producers(start.producers)
            roots += bad
            if not bad and start.leaf is not None:
                direct += self._leaf(start.leaf, start.counts, -1, start.name)
        self.walk(roots)
        result = Slice(visited=self.visited, held=held_constants(self, starts))
        if result.held:
            return result
        result.origins = direct + self._origins()
        self._escape(result)
        result.origins = _unique(sorted(result.origins, key=lambda o: o.order))
        self._contributors(result)
        result.chain = self._chain(result, roots)
        return result

    # -- walking ------------------------------------------------------------------------------

    def roots(self, reads: list[Read]) -> tuple[list[int], list[Origin]]:
        """The bad events that some reads come from, and the leaves among them that are bad."""
        roots: list[int] = []
        direct: list[Origin] = []
        for read in reads:
            bad = self._bad_producers(read.producers)
            roots += bad
            if not bad and read.leaf is not None:
                direct += self._leaf(read.leaf, read.counts, -1, read.argument)
        return roots, direct

    def walk(self, roots: list[int]) -> None:
        """Visit all bad events that lead to some."""
        stack = list(roots)
        while stack:
            index = stack.pop()
            if index in self.visited:
                continue
            self.visited.add(index)
            self.sources[index] = []
            self.parents[index] = []
            for parent in self._follow(self.events[index]):
                self.parents[index].append(parent)
                stack.append(parent)

    def _follow(self, event: Event) -> list[int]:
        """Note where an event's badness comes from; return the events to go on with."""
        if event.uninitialised:
            self.sources[event.index].append(Origin("uninitialised", event.index))
            return []
        reads = self._relevant_reads(event)
        if not reads:
            self._terminal(event)
            return []
        if self.cut and converts_saved_minus_inf(event, self.gradients):
            self._add(event, self.conversion(event.index))
            return []
        parents: list[int] = []
        for read in reads:
            if read.argument in event.unseen:
                self._add(event, Origin("unseen_write", event.index, argument=read.argument))
                continue
            bad = self._bad_producers(read.producers)
            parents += bad
            if not bad and read.leaf is not None:
                self.sources[event.index] += self._leaf_sources(read, event)
        self._scalars(event)
        return parents

    def _relevant_reads(self, event: Event) -> list[Read]:
        """The non-finite reads to follow; under a finite loss, gradients only."""
        reads = event.bad_reads
        if not reads or not self.cut or event.node is None or event.index not in self.gradients:
            return reads
        reads = [r for r in reads if not hides(event, r)]
        through = [r for r in reads if any(p in self.gradients for p in r.producers)]
        if through:
            return through
        made_here = [r for r in reads if self._made_in_backward(r)]
        if made_here:
            return made_here
        if reads:
            self.saved[event.index] = reads
            self._add(event, Origin("saved_value", event.index))
        return []

    def _made_in_backward(self, read: Read) -> bool:
        """Whether a derivative that backward computed of saved values was bad of itself."""
        seen: set[int] = set()
        stack = self._bad_producers(read.producers)
        while stack:
            index = stack.pop()
            event = self.events[index]
            if index in seen or event.node is None or event.recomputed:
                continue
            seen.add(index)
            if not event.bad_reads or converts_saved_minus_inf(event, self.gradients):
                return True
            stack += [p for r in event.bad_reads for p in self._bad_producers(r.producers)]
        return False

    def _terminal(self, event: Event) -> None:
        """An event without bad inputs: a birth, a constant, or a scalar that was bad."""
        if self.sources[event.index]:
            return
        if not self._scalars(event):
            self._add(event, Origin("birth", event.index))

    def _scalars(self, event: Event) -> bool:
        """Note a non-finite Python number among the arguments; whether there was one."""
        bad = [(name, value) for name, value in event.scalars if not math.isfinite(value)]
        if not bad:
            return False
        name, value = bad[0]
        infinite = not math.isnan(value)
        updates = event.where in ("optimizer", "scaler", "clip")
        made_nan = any(write.counts[0] for write in event.writes)
        if not updates and not event.bad_reads and scales_what_is_learned(self.events, event):
            self._add(event, Origin("nonfinite_scalar", event.index, argument=name))
        elif (infinite and event.fills_constant) or (infinite and not updates and not made_nan):
            self.sources[event.index].append(_CONSTANT)
        elif infinite and not updates:
            self._add(event, Origin("conversion", event.index, argument=name))
        elif not event.bad_reads:
            self._add(event, Origin("nonfinite_scalar", event.index, argument=name))
        return True

    def _leaf_sources(self, read: Read, event: Event) -> list[Origin | str]:
        if read.leaf is None:
            return []
        if read.leaf[0] == "captured_tensor" and read.storage in self.literals:
            nan = Origin("nonfinite_scalar", event.index, argument=read.argument)
            return [nan] if read.counts[0] else [_CONSTANT]
        nan_or_inf = read.counts[0] or read.counts[1]
        if self.trace.threads and read.leaf[1].startswith(UNNAMED) and nan_or_inf:
            # first seen here, and threads ran in this step: it may be theirs
            return [Origin("unseen_write", event.index, argument=read.argument)]
        found: list[Origin | str] = list(
            self._leaf(read.leaf, read.counts, event.index, read.argument)
        )
        return found or [_CONSTANT]

    def _leaf(
        self, leaf: tuple[str, str], counts: tuple[int, int, int], event: int, argument: str
    ) -> list[Origin]:
        """A leaf of only -Inf is an intended constant; one with +Inf or NaN is poisoned."""
        if not counts[0] and not counts[1]:
            return []
        kind, name = leaf
        return [Origin(kind, event, name, argument)]  # type: ignore[arg-type]

    def _add(self, event: Event, origin: Origin) -> None:
        self.sources[event.index].append(origin)

    def _bad_producers(self, producers: tuple[int, ...]) -> list[int]:
        return [p for p in producers if self.events[p].bad or self.events[p].uninitialised]

    # -- judging ------------------------------------------------------------------------------

    def _origins(self) -> list[Origin]:
        """Turn what was noted into origins: real ones, else conversions, else the first spread."""
        origins: list[Origin] = []
        real: set[int] = set()
        replaced: set[int] = set()
        for index in sorted(self.visited):
            event = self.events[index]
            own = self.own(index)
            upstream = {p for p in self.parents[index] if p in real}
            if is_conversion(event) and event.absorbs_some and not own:
                # part of the Infs was absorbed as intended: what converts the rest comes first
                behind = self._ancestors(index)
                meant = not any(self.overflowed(i) for i in behind)
                origins += [self.conversion(index)] if meant else []
                replaced |= behind if meant else set()
                real.add(index)
            elif own:
                origins += own
                real.add(index)
            elif upstream:
                real.add(index)
            elif is_conversion(event):
                origins.append(self.conversion(index))
                real.add(index)
        origins = [o for o in origins if o.event not in replaced or o.leaf is not None]
        return origins or self._first_spread()

    def _first_spread(self) -> list[Origin]:
        """Intended Infs reached the sink: the reduction that first mixes them is the origin."""
        ordered = sorted(self.visited)
        spreads = [
            event
            for event in (self.events[index] for index in ordered)
            if event.base in REDUCTIONS and event.bad and event.bad_reads
        ]
        mixing = [event for event in spreads if mixes_finite(event)]
        return self.spread_birth([e.index for e in (*mixing[:1], *spreads[:1])] + ordered[:1])

    def reached(self, start: Start) -> set[int]:
        """The bad events that lead to a start, of those walked."""
        roots = self._bad_producers(start.producers)
        return set(roots).union(*(self._ancestors(root) for root in roots))

    def own(self, index: int) -> list[Origin]:
        """The origins noted at an event itself."""
        return [s for s in self.sources[index] if isinstance(s, Origin)]

    def overflowed(self, index: int) -> bool:
        """Whether an event is the birth of an Inf that can only be an overflow."""
        return overflows(self.events[index]) and any(o.kind == "birth" for o in self.own(index))

    @staticmethod
    def conversion(index: int) -> Origin:
        """An event as the origin of NaN made of infinities."""
        return Origin("conversion", index)

    @staticmethod
    def spread_birth(candidates: list[int]) -> list[Origin]:
        """The first of some events, in order of preference, as a birth."""
        return [Origin("birth", index) for index in candidates[:1]]

    def _ancestors(self, index: int) -> set[int]:
        seen: set[int] = set()
        stack = list(self.parents[index])
        while stack:
            parent = stack.pop()
            if parent not in seen:
                seen.add(parent)
                stack += self.parents.get(parent, [])
        return seen

    def _escape(self, result: Slice) -> None:
        """A saved value that had spread over positions in forward is born there (DESIGN rule 2)."""
        kept: list[Origin] = []
        behind = Behind(_Slicer(self.trace, cut=False))
        for origin in result.origins:
            if origin.kind != "saved_value":
                kept.append(origin)
                continue
            reads = self.saved[origin.event]
            origins, mixed = behind.of(reads)
            origins = _unique(sorted(origins, key=lambda o: o.order))
            # the node's own forward op may be the one that mixed it
            if origins and (mixed or self._node_mixes(origin)):
                kept += origins
                result.visited |= behind.take(reads)
            else:
                kept.append(origin)
                result.contributors += [
                    (o.event, "absorbed_in_forward") for o in origins if o.event >= 0
                ]
        result.origins = kept

    def _node_mixes(self, origin: Origin) -> bool:
        node = self.events[origin.event].forward_event
        return node is not None and self.events[node].base in MIXING and self.events[node].bad

    def _contributors(self, result: Slice) -> None:
        chosen = {origin.event for origin in result.origins}
        for index in sorted(self.visited):
            births = [s for s in self.sources.get(index, []) if isinstance(s, Origin)]
            if births and index not in chosen and births[0].kind == "birth":
                result.contributors.append((index, "birth_of_inf"))
        for origin in result.origins:
            if origin.kind == "nonfinite_scalar":
                source = scalar_producer(self.events, origin.event)
                if source is not None:
                    result.contributors.append((source, "produced_scalar"))

    def _chain(self, result: Slice, roots: list[int]) -> list[int]:
        """The shortest way from the first origin to the sink, along bad events."""
        if not result.origins or not roots:
            return []
        target = result.origins[0].event
        came: dict[int, int | None] = {roots[0]: None}
        queue = [roots[0]]
        for root in roots[1:]:
            came.setdefault(root, None)
            queue.append(root)
        for index in queue:
            if index == target:
                break
            for parent in self.parents.get(index, []):
                if parent not in came:
                    came[parent] = index
                    queue.append(parent)
        path: list[int] = []
        at: int | None = target if target in came else None
        while at is not None:
            path.append(at)
            at = came[at]
        return path


def _unique(origins: list[Origin]) -> list[Origin]:
    """One origin per event, and one per leaf however many events read it."""
    seen: set[object] = set()
    kept = []
    for origin in origins:
        key: object = origin.leaf if origin.leaf is not None else origin.event
        if key not in seen:
            seen.add(key)
            kept.append(origin)
    return kept
