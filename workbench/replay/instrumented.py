"""A step run once more under a dispatch mode: every op recorded, or some ops' arguments kept."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, cast

from workbench.replay.devices import require_device
from workbench.replay.memory import refuse_out_of_memory
from workbench.replay.plan import last_available, order
from workbench.replay.session import Session
from workbench.replay.trace import Trace, trace_step
from workbench.replay.trace_kept import KeptPass, keep_events

if TYPE_CHECKING:
    from workbench.evidence import Conditions
    from workbench.replay.source import Source
    from workbench.step.stages import Stage


def run_traced(
    source: Source, conditions: Conditions, until: str | None, *, exponents: bool
) -> Trace:
    """Trace the step from its sealed state.

    Args:
        source: The recorded step.
        conditions: What to run under.
        until: Last stage to run; None runs to the first gate that trips.
        exponents: Whether ranges say how magnitudes are spread over binary exponents.
    """
    session = _session(source, conditions)
    with session.running(traced=True):
        trace = trace_step(
            session.runner,
            until=_last(source, until),
            micro_batches=session.batches,
            stop_when_bad=until is None,
            exponents=exponents,
        )
    refuse_out_of_memory(trace.first_bad, session.runner.model, source)
    return trace


def run_kept(
    source: Source, conditions: Conditions, until: str | None, events: Collection[int]
) -> KeptPass:
    """Run the step as ``run_traced`` does and keep the real arguments of some events.

    Args:
        source: The recorded step.
        conditions: What to run under.
        until: Last stage to run; None runs to the first gate that trips.
        events: Numbers of events of a trace under the same conditions.
    """
    session = _session(source, conditions)
    with session.running(traced=True):
        found = keep_events(
            session.runner, events, until=_last(source, until), stop_when_bad=until is None
        )
    refuse_out_of_memory(found.first_bad, session.runner.model, source)
    return found


def _session(source: Source, conditions: Conditions) -> Session:
    source.require("input")
    require_device(conditions.device)
    return Session(source, conditions)


def _last(source: Source, until: str | None) -> Stage:
    available = last_available(source)
    return cast("Stage", available if until is None else min(until, available, key=order))
