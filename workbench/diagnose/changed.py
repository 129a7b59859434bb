"""Run a recorded step with one diagnostic change, and say how it ended."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from workbench.diagnose.analysis import Analysis, analyse
from workbench.diagnose.interventions import Intervention
from workbench.errors import WorkbenchError
from workbench.replay.calls import CallMode, unnumbered
from workbench.replay.session import Session
from workbench.replay.trace import Tracer
from workbench.replay.trace_kept import KeptPass, keep_events

if TYPE_CHECKING:
    from workbench.replay import Replay
    from workbench.replay.calls import Change
    from workbench.replay.trace import Trace
    from workbench.step.runner import Outcome
    from workbench.step.stages import Stage

Result = Literal["gone", "moved", "benign_skip", "unchanged"]


@dataclass(frozen=True)
class Ended:
    """How a changed run ended.

    Attributes:
        bad: The outcome that tripped, or None.
        skipped: Whether the scaler will skip the update.
    """

    bad: Outcome | None
    skipped: bool


def run_changed(
    replay: Replay, intervention: Intervention, reference: Outcome | None = None
) -> Ended | None:
    """Run the step with one change.

    Args:
        replay: The replay.
        intervention: The change.
        reference: How the original run failed: the same exception again is that failure, while
            another one says that the change does not fit.

    Returns:
        How it ended, or None when the change cannot be made here.
    """
    session = _session(replay, intervention)
    if session is None:
        return None
    unavailable = replay.source.unavailable()
    skipped = False
    with session.running(), CallMode(_changes(intervention)):
        runner = session.runner
        while (unit := runner.next_unit) is not None and unit.stage not in unavailable:
            outcome = runner.advance(unnumbered)
            new = outcome.exception is not None and not same_exception(outcome, reference)
            if new and (intervention.change is not None or intervention.state is not None):
                return None  # the change does not fit what the call is used for
            if outcome.status == "bad":
                return Ended(outcome, skipped) if _applied(intervention) else None
            skipped |= outcome.status == "skip"
    return Ended(None, skipped) if _applied(intervention) else None


def trace_changed(replay: Replay, intervention: Intervention) -> Trace | None:
    """Trace the step with one change; None when the change cannot be made here."""
    session = _session(replay, intervention)
    if session is None:
        return None
    with session.running(traced=True):
        tracer = Tracer(session.runner, session.batches)
        tracer.calls.changes = _changes(intervention)
        trace = tracer.run(_last(replay, session), None, True)
    return trace if _applied(intervention) else None


def _kept(replay: Replay, intervention: Intervention, events: Collection[int]) -> KeptPass:
    """Run the changed step once more and keep arguments; nothing where it changed differently."""
    session = _session(replay, intervention)
    if session is None:
        return KeptPass()
    with session.running(traced=True):
        return keep_events(
            session.runner,
            events,
            until=_last(replay, session),
            changes=_changes(intervention),
        )


def _last(replay: Replay, session: Session) -> Stage | None:
    """The last stage before the first that is not available here."""
    unavailable = replay.source.unavailable()
    last: Stage | None = None
    for unit in session.runner.plan:
        if unit.stage in unavailable:
            break
        last = unit.stage
    return last


def analyse_changed(replay: Replay, intervention: Intervention) -> Analysis | None:
    """Analyse the step with one change; None when the change cannot be made here."""
    trace = trace_changed(replay, intervention)
    if trace is None:
        return None
    return analyse(trace, lambda events: _kept(replay, intervention, events))


def _session(replay: Replay, intervention: Intervention) -> Session | None:
    source = replay.source
    state = source.state
    if intervention.batch is not None:
        batches = [intervention.batch(batch) for batch in source.batches]
        state = replace(state, micro_batches=batches)
    if intervention.state is not None:
        state = intervention.state(state)
    try:
        conditions = replay.nearest.replace(**dict(intervention.conditions))
        return Session(replace(source, state=state), conditions)
    except (WorkbenchError, RuntimeError, TypeError, ValueError, IndexError):
        return None  # samples of such a batch cannot be left out, or the condition does not exist


def _changes(intervention: Intervention) -> list[Change]:
    return [intervention.change] if intervention.change is not None else []


def _applied(intervention: Intervention) -> bool:
    """Whether the change really was put in."""
    return bool(getattr(intervention.change, "applied", True))


def same_exception(outcome: Outcome, reference: Outcome | None) -> bool:
    """Whether two runs ended with the same exception."""
    if outcome.exception is None or reference is None or reference.exception is None:
        return False
    return same_error(outcome.exception, reference.exception)


def same_error(a: Exception, b: Exception) -> bool:
    """Whether two exceptions are of one class and say the same."""
    return type(a) is type(b) and str(a) == str(b)


def classify(ended: Ended, reference: Outcome) -> Result:
    """Compare how a changed run ended with how the original one failed."""
    if ended.bad is None:
        return "benign_skip" if ended.skipped else "gone"
    same_stage = ended.bad.unit.stage == reference.unit.stage
    if reference.exception is not None and ended.bad.exception is not None and same_stage:
        return "unchanged" if same_error(ended.bad.exception, reference.exception) else "moved"
    return "unchanged" if same_stage and ended.bad.tensor == reference.tensor else "moved"
