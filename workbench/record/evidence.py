"""What is written on a trip (L2): what was bad where, and all that a replay is judged by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from workbench.numerics.stats import tensor_stats
from workbench.record.session import Session
from workbench.record.trip import Trip
from workbench.step.domains import batch_fields
from workbench.step.gates import BadTensor, scaler_enabled
from workbench.step.names import named_parameters
from workbench.step.runner import Outcome, StepRunner
from workbench.step.values import scalar, text_of

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

SCHEMA = "workbench.evidence/1"
MOST_BAD = 2000
"""Bad tensors described one by one; the rest is counted."""


def evidence_of(
    session: Session, trip: Trip, runner: StepRunner, alerts: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Describe an incident, light enough to be written first.

    Args:
        session: The recorded step.
        trip: What tripped.
        runner: The runner, with what the step computed.
        alerts: The alerts of this step.
    """
    bad = () if trip.finding is None else trip.finding.bad
    exception = None if trip.finding is None else trip.finding.exception
    first = trip.first_bad
    return {
        "schema": SCHEMA,
        "kind": trip.kind,
        "stage": None if first is None else first.stage,
        "phase": trip.unit.phase,
        "micro_step": trip.unit.micro_step,
        "tensor": None if first is None else first.tensor,
        "reason": session.capture,
        "stopped_at": session.stopped_at,
        "bad": [_bad(one) for one in bad[:MOST_BAD]],
        "bad_total": len(bad),
        "bad_by_group": _by_group(bad, session.recorder.model, session.recorder.optimizers),
        "input": [] if trip.finding is None else [v.as_dict() for v in trip.finding.violations],
        "exception": None if exception is None else _exception(exception),
        "alerts": list(alerts),
        "loss": scalar(runner.loss_value),
        "losses": _losses(runner),
        "gradients": _gradients(session, runner),
        "units": [_unit(outcome) for outcome in session.outcomes],
        "update": _update(runner, session),
        "reduce": session.reduce,
        "decision": session.decision or None,
        "soft_gates": session.soft_gates,
        "notes": list(session.notes),
        "order": list(session.recorder.order.found),
        "checkpoints": session.checkpoints,
        "held": session.recorder.held,
        "digests": {
            "loss_bits": session.loss_bits,
            "gradients": session.gradient_digests(),
            "contribution": session.contribution,
            "masks": {one.name: one.mask for one in bad},
            "rng": session.rng_after,
        },
    }


def statistics_of(session: Session, batches: Sequence[Any]) -> dict[str, Any]:
    """Statistics of batch, parameters and gradients, for a bundle that holds no values."""
    named = {f"batch.{i}.{n}": t for i, b in enumerate(batches) for n, t in batch_fields(b)}
    named |= {f"parameter:{n}": p for n, p in named_parameters(session.recorder.model)}
    named |= {f"gradient:{n}": kept.tensor for n, kept in session.gradients.items()}
    return {name: _stats(t.detach()) for name, t in named.items()}


def _stats(t: Tensor) -> dict[str, Any]:
    described: dict[str, Any] = {
        "shape": list(t.shape),
        "dtype": str(t.dtype).removeprefix("torch."),
    }
    return described | tensor_stats(t).as_dict()


def _bad(bad: BadTensor) -> dict[str, Any]:
    return {
        "kind": bad.kind,
        "name": bad.name,
        "counts": bad.counts.as_dict(),
        "shape": list(bad.shape),
        "dtype": bad.dtype,
        "first": None if bad.first is None else list(bad.first),
        "value": bad.value,
        "mask": bad.mask,
    }


def _by_group(
    bad: Sequence[BadTensor], model: nn.Module, optimizers: Sequence[Optimizer]
) -> dict[str, list[str]]:
    """Sort the names of bad gradients and parameters by optimizer and parameter group."""
    names = {id(parameter): name for name, parameter in named_parameters(model)}
    group_of = {
        names[id(parameter)]: f"optimizer{number}.group{index}"
        for number, optimizer in enumerate(optimizers)
        for index, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
        if id(parameter) in names
    }
    found: dict[str, list[str]] = {}
    for one in bad:
        kind, _, name = one.name.partition(":")
        if kind in ("gradient", "parameter"):
            found.setdefault(group_of.get(name, "none"), []).append(name)
    return found


def _exception(error: BaseException) -> dict[str, Any]:
    place = None
    trace = error.__traceback__
    while trace is not None:  # the innermost frame is where it was raised
        place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    kind = type(error)
    return {
        "type": f"{kind.__module__}.{kind.__qualname__}",
        "message": text_of(error)[:4000],
        "raised_at": place,
    }


def _losses(runner: StepRunner) -> list[dict[str, Any]]:
    """The loss of every micro-step, in order, with its components."""
    values = runner.values
    return [
        {
            "loss": scalar(loss),
            "components": {name: scalar(value) for name, value in parts.items()},
        }
        for loss, parts in zip(values.losses, values.components, strict=False)
    ]


def _gradients(session: Session, runner: StepRunner) -> dict[str, Any]:
    unit = session.gradient_unit
    enabled, unscaled = scaler_enabled(runner.scaler), runner.values.unscaled
    scaled = (None if unscaled is None else not unscaled) if enabled else False
    return {
        "stage": None if unit is None else unit.stage,
        "phase": None if unit is None else unit.phase,
        "scaled": scaled,
        "reduced": True,
        "clipped": False,
        "kept": bool(session.gradients),
        "norm": scalar(runner.values.grad_norm),
        "first_bad_micro_step": session.bad_micro_step,
    }


def _unit(outcome: Outcome) -> dict[str, Any]:
    return {
        "stage": outcome.unit.stage,
        "phase": outcome.unit.phase,
        "micro_step": outcome.unit.micro_step,
        "status": outcome.status,
        "tensor": outcome.tensor,
        "masks": {bad.name: bad.mask for bad in outcome.bad},
        "counts": outcome.bad[0].counts.as_dict() if outcome.bad else None,
    }


def _update(runner: StepRunner, session: Session) -> dict[str, Any]:
    values = runner.values
    return {
        "ran_before_the_trip": session.update_ran_before_trip,
        "withheld": values.withheld,
        "scale_before": values.scale_before,
        "scale_after": values.scale_after,
        "optimizers": [
            {
                "attempted": one.attempted,
                "updated": one.updated,
                "skipped_by": one.skipped_by,
                "found_inf": one.found_inf,
            }
            for one in values.optimizer_records
        ],
    }
