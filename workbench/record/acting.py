"""What the recorder does once something tripped: freeze it, act on the policy, end the step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.errors import NonFiniteError
from workbench.record.ending import any_updated
from workbench.record.policy import Action
from workbench.record.ranks.first import first_elsewhere
from workbench.record.trip import Finding, Trip, decide, make_trip
from workbench.step.runner import StepRunner
from workbench.step.stages import Unit
from workbench.step.values import note

if TYPE_CHECKING:
    from workbench.record.recorder import Recorder
    from workbench.record.session import Session


def freeze(recorder: Recorder, session: Session, runner: StepRunner, finding: Finding) -> Trip:
    """Make a finding the trip of the step, unless there is one, and freeze what led to it."""
    trip = make_trip(finding, recorder.run_id, session.step_index, recorder.rank)
    stage = finding.unit.stage
    if finding.elsewhere is not None and session.outcomes:
        stage = session.outcomes[-1].unit.stage  # where this rank stopped
    if session.trip is None:
        session.trip, updated = trip, any_updated(runner)
        recorder.guard("freeze", lambda: session.settle(runner.loss_value, stage, updated))
    return trip


def act(recorder: Recorder, session: Session, runner: StepRunner, finding: Finding) -> None:
    """Freeze the first trip of the step and do what the policy says; the one place for it.

    Raises:
        NonFiniteError: The policy says ``raise``.
    """
    trip = freeze(recorder, session, runner, finding)
    updated = any_updated(runner)
    action: Action = (
        session.decision.get("action")
        or recorder.guard("policy", lambda: decide(trip, recorder.policy))
        or "raise"
    )
    if action == "continue":
        return
    if not updated and not runner.values.withheld:
        runner.withhold_update()
    if action == "raise":
        session.raising = True
        raise _nonfinite_error(recorder, session, runner)


def failed(
    recorder: Recorder, session: Session, runner: StepRunner, unit: Unit, error: Exception
) -> Exception:
    """End a step that an exception ended; what to raise: it, or the other rank's behind it."""
    ranks = recorder.ranks
    behind = None if ranks is None else ranks.explain(error, session.step_index)
    if ranks is None or behind is None:
        if ranks is not None:
            recorder.guard("news", lambda: ranks.raised(error, unit))
        _fail(recorder, session, runner, Finding(unit, exception=error), error)
    else:
        if behind is not error:
            behind.__cause__ = error
        told = {"tensor": "rank", "sink": "rank", "kind": "exception", "message": str(behind)}
        told["role"] = "lost" if behind.lost else "raised" if behind.exception else "unknown"
        elsewhere = -1 if behind.rank is None else behind.rank
        _fail(recorder, session, runner, Finding(unit, elsewhere=elsewhere, told=told), behind)
    if ranks is not None:
        ranks.leave(session.step_index, alike=False)
    return behind or error


def _fail(
    recorder: Recorder, session: Session, runner: StepRunner, finding: Finding, error: BaseException
) -> None:
    """Seal the evidence of an exception and note it there; never raises."""
    trip = freeze(recorder, session, runner, finding)
    result = recorder.finish(session, runner)
    if result.incident is not None:
        note(error, f"workbench: the evidence of this step is in {result.incident}")
    first = recorder.guard("first rank", lambda: first_elsewhere(recorder, session, trip))
    if first is not None:
        where = "" if first.shared else ", on the machine of that rank"
        note(error, f"workbench: the evidence of rank {first.rank} is in {first.bundle}{where}")
    for failure in recorder.failed_in(session):
        note(error, f"workbench: while recording, {failure}")


def _nonfinite_error(recorder: Recorder, session: Session, runner: StepRunner) -> NonFiniteError:
    result = recorder.finish(session, runner)
    if recorder.ranks is not None:
        recorder.ranks.leave(session.step_index, alike=True)
    path = None if result.incident is None else str(result.incident)
    return NonFiniteError(session.text, path)
