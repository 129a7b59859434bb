"""Where a slice starts when the step did not end at a non-finite sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.diagnose.slicing import Start

if TYPE_CHECKING:
    from workbench.replay.trace import Trace
    from workbench.replay.trace_events import Event

_LOOK_BACK = 12
"""How many ops a guard like ``isfinite(x).all()`` may put between tensor and exception."""


def starts_of(trace: Trace) -> list[Start]:
    """Return the tensors a trace's slice starts from.

    These are the sinks; after an exception, the non-finite tensors it was about: what the op that
    raised was reading, else what the last values read out into Python came from.
    """
    if trace.raised is None:
        return [Start(s.producers, s.leaf, s.counts, s.name) for s in trace.sinks]
    if trace.raised.event is not None:
        return _bad_reads(trace.graph[trace.raised.event])
    return _read_out(trace, trace.raised.stage)


def _bad_reads(event: Event) -> list[Start]:
    return [Start(r.producers, r.leaf, r.counts, r.argument) for r in event.bad_reads]


def _read_out(trace: Trace, stage: str) -> list[Start]:
    """Follow the stage's last values read into Python back to a non-finite float tensor."""
    for event in reversed(trace.graph):
        if event.stage != stage:
            break
        if event.base != "_local_scalar_dense":
            continue
        found = _guarded(trace, event)
        if found:
            return found
    return []


def _guarded(trace: Trace, event: Event) -> list[Start]:
    seen: set[int] = set()
    queue = [event.index]
    while queue and len(seen) < _LOOK_BACK:
        index = queue.pop(0)
        if index in seen:
            continue
        seen.add(index)
        found = _bad_reads(trace.graph[index])
        if found:
            return found
        queue += [p for read in trace.graph[index].reads for p in read.producers]
    return []
