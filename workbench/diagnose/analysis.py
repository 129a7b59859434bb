"""Analyse a traced step: slice it, keep real inputs in a second pass, judge, name causes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from workbench.diagnose.absorbed import Absorption, candidates, confirmed, to_keep
from workbench.diagnose.case import Case, ancestors
from workbench.diagnose.causes import Cause, name_cause
from workbench.diagnose.selections import selections
from workbench.diagnose.slicing import Origin, Slice, slice_trace
from workbench.diagnose.starts import starts_of
from workbench.replay.trace_plan import floating

if TYPE_CHECKING:
    from workbench.diagnose.growth import Growth
    from workbench.replay.envelope import Outlier
    from workbench.replay.trace import Trace
    from workbench.replay.trace_events import KeptEvent
    from workbench.replay.trace_kept import KeptPass

Again = Callable[[Collection[int]], "KeptPass"]
"""Runs the step once more, keeping the real arguments of the events asked for."""

MAX_ORIGINS = 32


@dataclass
class Judged:
    """One origin with its judgement."""

    case: Case
    cause: Cause | None

    @property
    def origin(self) -> Origin:
        """The origin."""
        return self.case.origin


@dataclass
class Analysis:
    """What a trace says about a step.

    Attributes:
        trace: The first pass.
        slice: What reaches the sinks.
        origins: Origins with range and cause, first in time first.
        absorbed: Infs that ended in wrong finite numbers.
        stable: Whether the second pass executed the same events as the first.
        growth: The earlier step from which values grew to an overflow, or None.
        left: The first value of the kept steps outside its usual envelope, or None.
        counterfactuals: Rows of findings/1, one for each change that was tried.
    """

    trace: Trace
    slice: Slice
    origins: list[Judged] = field(default_factory=list)
    absorbed: list[tuple[Absorption, Judged]] = field(default_factory=list)
    stable: bool = True
    growth: Growth | None = None
    left: Outlier | None = None
    counterfactuals: list[dict[str, Any]] = field(default_factory=list)


def analyse(trace: Trace, again: Again, *, raises: bool = True) -> Analysis:
    """Find origins and their causes.

    Args:
        trace: The first pass.
        again: Runs the second pass, which keeps the real inputs of what matters.
        raises: Whether the step raises without probes too; an exception that only the traced
            replay met says nothing about the step.
    """
    sliced = slice_trace(trace, starts_of(trace))
    origins = sliced.origins or (_exception(trace) if raises else [])
    silent = candidates(trace)
    keep = _to_keep(trace, origins, silent)
    kept: dict[int, KeptEvent] = {}
    stable = True
    if keep:
        second = again(keep)
        stable = second.same_events(trace)
        kept = second.events if stable else {}
    result = Analysis(trace, sliced, stable=stable)
    result.origins = [_judge(trace, sliced, o, kept) for o in origins[:MAX_ORIGINS]]
    wrong = confirmed(trace, silent, kept, origins)
    result.absorbed = [(a, _judge(trace, sliced, Origin("birth", a.birth), kept)) for a in wrong]
    return result


def _exception(trace: Trace) -> list[Origin]:
    """An exception that no non-finite value led to is itself the origin."""
    if trace.raised is None:
        return []
    event = trace.raised.event
    return [Origin("exception", -1 if event is None else event)]


def _to_keep(trace: Trace, origins: list[Origin], silent: list[Absorption]) -> set[int]:
    keep = to_keep(trace, silent)
    for origin in origins[:MAX_ORIGINS]:
        if origin.event >= 0:
            keep |= {origin.event, *ancestors(trace, origin.event)}
            if trace.graph[origin.event].node is not None:
                keep |= set(selections(trace, [origin.event]))
    return keep


def _seen_again(trace: Trace, origin: Origin, kept: dict[int, KeptEvent]) -> Origin:
    """A birth whose operand the second pass found non-finite was written unseen before it.

    The first pass trusts its write log, and an op that works in place leaves no operand to look at
    again; the second pass has copied it before the op ran.
    """
    event = kept.get(origin.event)
    if origin.kind != "birth" or event is None:
        return origin
    node = trace.graph[origin.event]
    finite = {read.argument for read in node.reads if read.used and not any(read.counts)}
    values = [*zip(event.names, event.args, strict=False), *event.kwargs.items()]
    for name, value in values:
        whole = isinstance(value, torch.Tensor) and floating(value) and name in finite
        if whole and not bool(torch.isfinite(value).all()):
            return Origin("unseen_write", origin.event, argument=name)
    return origin


def _judge(trace: Trace, sliced: Slice, origin: Origin, kept: dict[int, KeptEvent]) -> Judged:
    origin = _seen_again(trace, origin, kept)
    case = Case(trace, sliced, origin, kept, facts={"scale": trace.scale})
    if origin.leaf is None and origin.kind != "exception":
        case.judge_range()
    return Judged(case, name_cause(case))
