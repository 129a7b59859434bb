"""One L1 record: what the ledger keeps of every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.record import settings
from workbench.record.session import Session
from workbench.step.gates import scaler_enabled
from workbench.step.proof import OptimizerRecord
from workbench.step.runner import StepRunner
from workbench.step.values import scalar

if TYPE_CHECKING:
    from workbench.record.recorder import Recorder

_FROM_PROVENANCE = (
    "dataset_version",
    "shard_id",
    "model_commit",
    "tokenizer_hash",
    "config_hash",
    "checkpoint_parent",
    "global_batch_id",
    "dp_rank",
    "tp_rank",
    "pp_rank",
)


def make_record(
    recorder: Recorder,
    session: Session,
    runner: StepRunner,
    alerts: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """Build the L1 record of a finished step, with every field; null where unknown.

    Args:
        recorder: The recorder.
        session: The recorded step.
        runner: The runner, with what the step computed.
        alerts: The alerts of this step.
    """
    values = runner.values
    snapshot = session.snapshot
    loss = runner.loss_value
    return of_the_run(recorder, recorder.provenance) | {
        "step": session.step_index,
        "micro_step": _micro_step(session),
        "time": session.started,
        "sample_ids": session.sample_ids,
        "batch_fingerprint": session.batch_fingerprint,
        "batch_summary": session.batch_summary,
        "precision": settings.precision(recorder.step_object, session.autocast),
        "mode": "train" if recorder.model.training else "eval",
        "loss": scalar(loss),
        "loss_components": sum_components(runner) or None,
        "loss_scale": values.scale_before,
        "loss_scale_previous": recorder.previous_scale,
        "growth_tracker": _growth_tracker(session),
        "learning_rates": settings.learning_rates(recorder.optimizers),
        "grad_norm": grad_norm(runner),
        "grad_norm_is_scaled": _norm_is_scaled(runner),
        "optimizers": [optimizer_entry(one) for one in values.optimizer_records],
        "consecutive_skips": recorder.monitor.consecutive_skips,
        "schedulers_advanced": recorder.schedulers_advanced(),
        "rng_digest": None if snapshot is None else snapshot.rng.digest(),
        "soft_gates": session.soft_gates,
        "first_bad_stage": _own_stage(session),
        "alerts": list(alerts),
        "reduce": session.reduce,
        "decision": decision_of(session),
    }


def of_the_run(recorder: Recorder, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that say which run and rank a record is of, and what the user knows of it.

    Args:
        recorder: The recorder.
        provenance: The user's provenance as it was at the step.
    """
    known = {name: provenance.get(name) for name in _FROM_PROVENANCE}
    for name, number in recorder.place.parallel.items():
        known[name] = number if known[name] is None else known[name]
    return known | {"run_id": recorder.run_id, "rank": recorder.rank, "world": recorder.world}


def optimizer_entry(record: OptimizerRecord) -> dict[str, Any]:
    """What one optimizer did, as a record says it."""
    return {
        "attempted": record.attempted,
        "updated": record.updated,
        "skipped_by": record.skipped_by,
        "found_inf": record.found_inf,
    }


def decision_of(session: Session) -> dict[str, Any] | None:
    """What all ranks decided of the step; None on one rank and where nothing was up."""
    wanted = ("at", "stage", "micro_step", "rank", "action", "tripped", "skips", "capture", "alert")
    return {key: session.decision[key] for key in wanted} if session.decision else None


def _own_stage(session: Session) -> str | None:
    """Where this rank was bad; not where it stopped because another one was, or was lost."""
    trip = session.trip
    if trip is None or (trip.finding is not None and trip.finding.elsewhere is not None):
        return None
    return trip.stage


def _micro_step(session: Session) -> int:
    """The micro-step that went bad first, of a step that tripped or was skipped; else 0."""
    if session.bad_micro_step is not None:
        return session.bad_micro_step
    return 0 if session.trip is None else session.trip.unit.micro_step


def sum_components(runner: StepRunner) -> dict[str, float]:
    """Sum the loss components over micro-batches, by name."""
    total: dict[str, float] = {}
    for parts in runner.values.components:
        for name, value in parts.items():
            number = scalar(value)
            if number is not None:
                total[name] = total.get(name, 0.0) + number
    return total


def grad_norm(runner: StepRunner) -> float | None:
    """The gradient norm of the step: what clipping computed, else what the gate saw."""
    norm = runner.values.grad_norm
    if norm is None:
        norm = runner.values.gate_norm
    return scalar(norm)


def _norm_is_scaled(runner: StepRunner) -> bool | None:
    """Whether the norm still has the loss scale in it; None where the scaler does not tell."""
    if not scaler_enabled(runner.scaler):
        return False
    return None if runner.values.unscaled is None else not runner.values.unscaled


def _growth_tracker(session: Session) -> int | None:
    scaler = None if session.snapshot is None else session.snapshot.scaler
    if scaler is None or scaler.state_dict is None:
        return None
    value = scaler.state_dict.get("_growth_tracker")
    return value if isinstance(value, int) else None
