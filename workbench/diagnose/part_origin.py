"""The origin within one traced part, or nothing where the part alone cannot tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.diagnose.slicing import Origin, Slice, Start, slice_trace
from workbench.diagnose.starts import starts_of

if TYPE_CHECKING:
    from workbench.diagnose.probes import Place
    from workbench.replay.trace import Trace
    from workbench.replay.trace_events import Event
    from workbench.replay.trace_focus import Part, PartTrace


@dataclass
class Explained:
    """A first origin and the slice it comes from."""

    trace: Trace
    slice: Slice
    origin: Origin


def explain(
    traced: PartTrace, part: Part, at: Place | None, raises: bool = True
) -> Explained | None:
    """Slice from a boundary of a part back into it.

    Args:
        traced: The trace of some parts.
        part: The part in question.
        at: The boundary that turned bad, or None to start from what the gate found.
        raises: Whether the step raises without probes too; else what they raised says nothing.

    Returns:
        The first origin; None where what is bad came in from outside, or is intended constants.
    """
    trace = traced.trace
    if trace.raised is not None and not raises:
        return None
    starts = _starts(traced, part, at)
    sliced = slice_trace(trace, starts)
    incoming = _incoming(traced, sliced)
    if incoming - {"-inf"}:
        return None
    origins = sliced.origins
    if at is None and not origins and not incoming:
        origins = exception_origin(trace)
    if not origins:
        return None
    first = origins[0]
    if at is None and first.kind == "captured_tensor":
        return None  # whether the code holds a constant there, all of the step has to tell
    if incoming and _is_spread(trace, first):
        return None  # the -Inf that was mixed in may have been born outside
    return Explained(trace, sliced, first)


def exception_origin(trace: Trace) -> list[Origin]:
    """An exception that no non-finite value led to is itself the origin."""
    if trace.raised is None:
        return []
    event = trace.raised.event
    return [Origin("exception", -1 if event is None else event)]


def _starts(traced: PartTrace, part: Part, at: Place | None) -> list[Start]:
    if at is None:
        return starts_of(traced.trace)
    if at.side in ("gradient", "parameter"):
        return _gradient_starts(traced, part)
    for side in (at.side, "input"):
        for border in traced.borders:
            if (border.kind, border.module, border.nth) == (side, at.module, at.nth):
                return [Start(border.producers, border.leaf, border.counts, at.module)]
    return starts_of(traced.trace)


def _gradient_starts(traced: PartTrace, part: Part) -> list[Start]:
    """The bad gradients that ops of the part made: of parameters, and at module borders."""
    trace = traced.trace

    def made_here(producers: tuple[int, ...]) -> bool:
        events = (trace.graph[p] for p in producers[:1])
        return any(part.holds(e.module, e.stage) for e in events)

    starts = [
        Start(b.producers, b.leaf, b.counts, b.module)
        for b in traced.borders
        if b.kind == "gradient" and made_here(b.producers)
    ]
    starts += [
        Start(s.producers, s.leaf, s.counts, s.name) for s in trace.sinks if made_here(s.producers)
    ]
    return starts


def _incoming(traced: PartTrace, sliced: Slice) -> set[str]:
    """Classes of values that came into the slice from ops nothing is known of."""
    events = traced.trace.graph
    found: set[str] = set()
    for index in sliced.visited:
        for read in events[index].bad_reads:
            made = [events[p] for p in read.producers]
            if made and not any(traced.inside(e) and _known_bad(e) for e in made):
                found |= {
                    kind for kind, n in zip(("nan", "+inf", "-inf"), read.counts, strict=True) if n
                }
    return found


def _known_bad(event: Event) -> bool:
    return event.bad or event.uninitialised


def _is_spread(trace: Trace, origin: Origin) -> bool:
    """Whether an origin is only the first place that mixed in what was bad already."""
    if origin.kind != "birth" or not 0 <= origin.event < len(trace.graph):
        return False
    return bool(trace.graph[origin.event].bad_reads)
