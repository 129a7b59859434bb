"""The end of a recorded step: ledger, alerts, and the bundle where there is a reason for one."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.evidence.schema import FirstBad
from workbench.record.alerts import Alert, Seen, module_of
from workbench.record.budget import Allowance
from workbench.record.fingerprints import fingerprint_of
from workbench.record.incident import Incident, Written
from workbench.record.ledger import freeze_first_bad
from workbench.record.message import incident_text
from workbench.record.order_lint import MAY_BE_MEANT, REMARKS
from workbench.record.ranks.first import first_elsewhere
from workbench.record.record import grad_norm, make_record, sum_components
from workbench.record.result import Skipped, StepResult
from workbench.record.session import Session
from workbench.record.trip import Trip
from workbench.step.digests import loss_bits
from workbench.step.runner import StepRunner
from workbench.step.stages import Unit
from workbench.step.values import scalar

if TYPE_CHECKING:
    from workbench.record.recorder import Recorder

logger = logging.getLogger("workbench")


def finish_step(recorder: Recorder, session: Session, runner: StepRunner) -> StepResult:
    """End a step once: write what is to be written and count it.

    Args:
        recorder: The recorder.
        session: The recorded step.
        runner: The runner, with what the step computed.
    """
    if session.finished is not None:
        return session.finished
    recorder.step_index = session.step_index + 1
    skipped = skipped_by(runner)
    loss = recorder.guard("loss", lambda: runner.loss_value)
    written = recorder.guard("evidence", lambda: _record(recorder, session, runner, skipped))
    session.finished = StepResult(
        loss=scalar(loss),
        grad_norm=recorder.guard("norm", lambda: grad_norm(runner)),
        updated=_all_updated(runner),
        skipped_by=skipped,
        incident=None if written is None else written.path,
        step=session.step_index,
        loss_scale=runner.values.scale_before,
        consecutive_skips=recorder.monitor.consecutive_skips,
        optimizers=tuple(
            replace(one, consecutive_skips=skips)
            if (skips := recorder.monitor.skips_of(number)) != one.consecutive_skips
            else one
            for number, one in enumerate(runner.values.optimizer_records)
        ),
        loss_components=recorder.guard("components", lambda: sum_components(runner)) or {},
    )
    recorder.previous_scale = runner.values.scale_before
    return session.finished


def _record(
    recorder: Recorder, session: Session, runner: StepRunner, skipped: Skipped
) -> Written | None:
    loss = runner.loss_value
    found = recorder.monitor.look(_seen(recorder, session, runner)) or _alert_elsewhere(session)
    alerts = [alert.as_dict() for alert in found]
    if session.trip is not None or skipped != "none" or found or recorder.scan.hinted:
        recorder.guard("deep scan", session.look_deeper)
        recorder.scan_next()  # what was unusual once is looked at in full once more
    record = make_record(recorder, session, runner, alerts)
    record["order"] = recorder.guard("order lint", lambda: _lint(recorder, session, runner)) or []
    noted = session.trip is not None or session.capture is not None
    record["fingerprint"] = recorder.guard(
        "fingerprint", lambda: fingerprint_of(recorder, session, noted)
    )
    recorder.guard("ledger", lambda: recorder.ledger.append(record))
    trip = session.trip or _alert(recorder, session, found) or _capture(session)
    written = None
    recorder.guard("checkpoint states", lambda: _tell_checkpoints(recorder, session, trip))
    if trip is not None:
        session.settle(loss, None, any_updated(runner))
        recorder.guard("ledger", recorder.ledger.sync)
        _freeze_first(recorder, session, trip, record)
        written = _write(recorder, session, runner, trip, alerts)
        _tell(recorder, session, runner, trip, written)
    _keep(recorder, session, loss, trip is None and skipped == "none")
    return written


def _keep(recorder: Recorder, session: Session, loss: Any, calm: bool) -> None:
    """Keep the step for a later incident: in the ring, or as the last calm one."""
    calm = calm and recorder.calm.is_wanted
    if not (calm or recorder.ring.every):
        return
    bits = session.loss_bits or (None if loss is None else loss_bits(loss))
    if calm:
        recorder.guard("calm step", lambda: recorder.calm.add(session, bits))
    recorder.ring.add(session.step_index, session.snapshot, bits, session.sums)


def _seen(recorder: Recorder, session: Session, runner: StepRunner) -> Seen:
    """What the alerts are told of a finished step."""
    bad = () if session.trip is None or session.trip.finding is None else session.trip.finding.bad
    given = recorder.provenance.get("shard_id")
    if given is None and session.batch_summary is not None:
        given = session.batch_summary["scalars"].get("shard_id")
    return Seen(
        skipped=tuple(one.skipped_by == "scaler" for one in runner.values.optimizer_records),
        scale=runner.values.scale_after,
        loss=scalar(runner.loss_value),
        norm=grad_norm(runner),
        update_ratio=scalar(getattr(runner, "update_ratio", None)),
        tripped=session.trip is not None,
        module=module_of(bad[0].name) if bad else None,
        shard=None if given is None else str(given),
    )


def _tell_checkpoints(recorder: Recorder, session: Session, trip: Trip | None) -> None:
    """Let the states of checkpoints follow: this step was clean, or an incident."""
    watch = recorder.checkpoints
    if watch is None:
        return
    if trip is None or trip.kind == "captured":
        watch.clean(session.step_index, session.seen_in_full)
    else:
        what = "an alert" if trip.kind == "alert" else f"non-finite values at {trip.stage}"
        watch.incident(session.step_index, f"{what} in step {session.step_index}")
    if trip is not None:
        session.checkpoints = watch.seen()


def _lint(recorder: Recorder, session: Session, runner: StepRunner) -> list[str]:
    """Tell what is new about the order of the loop; the names go into the ledger."""
    new = recorder.order.look(session, runner)
    for name in new:
        level = logging.INFO if name in MAY_BE_MEANT else logging.WARNING
        logger.log(level, "Order of the loop (%s): %s", name, REMARKS[name])
    return new


def _alert_elsewhere(session: Session) -> list[Alert]:
    """The alert of another rank, on a rank that has none."""
    rank = session.alerted_by
    if rank is None:
        return []
    return [Alert("other_rank", float(rank), 0.0, f"Rank {rank} made an alert in this step.")]


def _alert(recorder: Recorder, session: Session, alerts: Sequence[Alert]) -> Trip | None:
    if not alerts:
        return None
    unit = next((o.unit for o in session.outcomes if o.status == "skip"), _last_unit(session))
    first = FirstBad(
        run_id=recorder.run_id,
        step=session.step_index,
        micro_step=unit.micro_step,
        rank=recorder.rank if session.alerted_by is None else session.alerted_by,
        stage=unit.stage,
        tensor=alerts[0].name,
        sink="alert",
        kind="alert",
        value=alerts[0].value,
        message=alerts[0].message,
    )
    return Trip("alert", unit, first)


def _capture(session: Session) -> Trip | None:
    return None if session.capture is None else Trip("captured", _last_unit(session), None)


def _last_unit(session: Session) -> Unit:
    return session.outcomes[-1].unit if session.outcomes else Unit("logging")


def _freeze_first(
    recorder: Recorder, session: Session, trip: Trip, record: Mapping[str, Any]
) -> None:
    if trip.kind != "nonfinite" or trip.first_bad is None or recorder.first_bad is not None:
        return
    if not went_bad_first(session, trip, recorder.rank):  # the first bad rank says it
        return
    recorder.first_bad = trip.first_bad
    content = {"first_bad": trip.first_bad.as_dict(), "record": dict(record)}
    recorder.guard(
        "first bad record",
        lambda: freeze_first_bad(recorder.directory, recorder.run_id, content),
    )


def went_bad_first(session: Session, trip: Trip, rank: int) -> bool:
    """Whether this rank is among those that went bad first; the others write light bundles."""
    if trip.finding is not None and trip.finding.elsewhere is not None:
        return False
    first = session.decision.get("first")
    return trip.kind != "nonfinite" or not first or rank in first


def _write(
    recorder: Recorder,
    session: Session,
    runner: StepRunner,
    trip: Trip,
    alerts: Sequence[dict[str, Any]],
) -> Written | None:
    policy = recorder.policy
    allowance = Allowance(recorder.budget, policy.max_bytes)
    if len(recorder.bundles) >= policy.max_bundles or allowance.most <= 0:
        session.notes.append("no bundle: this run has reached max_bundles or max_total_bytes")
        return None
    incident = Incident(recorder, session, trip, runner, alerts)
    begun = recorder.failures.total
    planned = recorder.guard("bundle", lambda: incident.begin(allowance)) or incident.partly
    if planned is None:
        if recorder.failures.total == begun:
            session.notes.append("no bundle: not even what is light fits into the bytes "
                                 "that max_bytes and max_total_bytes leave")  # fmt: skip
        allowance.settle(0)
        return None
    written = planned
    recorder.bundles.append(planned.path)
    if _goes_on(session, trip):
        recorder.background.run(
            planned.path, lambda: _complete(recorder, incident, planned, allowance)
        )
    else:
        written = _complete(recorder, incident, planned, allowance)
    session.completeness = incident.completeness
    return written


def _goes_on(session: Session, trip: Trip) -> bool:
    """Whether training goes on after this step, so that its evidence may be written beside it."""
    exception = None if trip.finding is None else trip.finding.exception
    return not session.raising and exception is None


def _complete(
    recorder: Recorder, incident: Incident, planned: Written, allowance: Allowance
) -> Written:
    """Write the rest of a bundle, and give back what it did not need."""
    written = recorder.guard("bundle", incident.complete) or incident.partly or planned
    allowance.settle(incident.writer.total_bytes)
    return written


def _tell(
    recorder: Recorder,
    session: Session,
    runner: StepRunner,
    trip: Trip,
    written: Written | None,
) -> None:
    session.text = incident_text(
        session.first_trip or trip,
        None if written is None else written.path,
        0 if written is None else written.size,
        not any_updated(runner),
        session.completeness,
        [*recorder.failed_in(session), *session.notes],
        step=recorder.reference["reference"],
        checkpoints=session.checkpoints,
        first=recorder.guard("first rank", lambda: first_elsewhere(recorder, session, trip)),
    )
    if session.raising:  # the exception says it
        return
    level = logging.INFO if trip.kind == "captured" else logging.WARNING
    logger.log(level, "%s", session.text)


def any_updated(runner: StepRunner) -> bool:
    """Whether any optimizer step was asked for and not skipped by the scaler."""
    return any(one.attempted and one.updated != "no" for one in runner.values.optimizer_records)


def _all_updated(runner: StepRunner) -> bool:
    records = runner.values.optimizer_records
    return bool(records) and all(one.updated == "yes" for one in records)


def skipped_by(runner: StepRunner) -> Skipped:
    """What withheld the update of a step."""
    if runner.values.withheld:
        return "gate"
    if any(one.skipped_by == "scaler" for one in runner.values.optimizer_records):
        return "scaler"
    return "none"
