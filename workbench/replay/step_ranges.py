"""Ranges of one replayed step of a trajectory: its totals, and a row for every parameter."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from workbench.numerics.stats import TensorStats, tensor_stats
from workbench.step.values import scalar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from workbench.replay.session import Session
    from workbench.step.state import StepState

Row = dict[str, Any]
_BEFORE_GRADIENTS: Final = ("input", "forward", "loss")
"""Stages that trip before there are gradients."""


def parameter_rows(
    step: int, before: StepState, session: Session, after: StepState | None
) -> tuple[list[Row], Row]:
    """Describe every parameter of a step.

    Args:
        step: Number of the step.
        before: The state it started from.
        session: Its session, run, with gradients kept.
        after: The state it left, or None for the incident's own step.

    Returns:
        A row per parameter, with ``absmax``, ``rms`` (before the step), ``gradient_absmax``,
        ``update_ratio`` (root mean square of the update over that of the parameter) and
        ``nonfinite``; and the largest of each over all parameters. NaN where there is no number.
    """
    rows = []
    for name, tensor in _parameters(before).items():
        stats = tensor_stats(tensor)
        gradient = (session.observed.gate_gradients or {}).get(name)
        rows.append(
            {
                "step": step,
                "parameter": name,
                "absmax": _number(stats.absmax),
                "rms": _rms(stats),
                "gradient_absmax": _number(
                    None if gradient is None else tensor_stats(gradient).absmax
                ),
                "update_ratio": _ratio(stats, tensor, after, name),
                "nonfinite": stats.nonfinite,
            }
        )
    keys = ("absmax", "rms", "gradient_absmax", "update_ratio")
    return rows, {key: _largest(rows, key) for key in keys}


def step_row(
    step: int, before: StepState, session: Session, totals: Row, recorded_bits: str | None
) -> Row:
    """One row about a step: what it computed, and whether that is what was recorded."""
    runner, seen = session.runner, session.observed
    bad = next((o for o in session.outcomes if o.status == "bad"), None)
    norm = runner.values.grad_norm
    norm = runner.values.gate_norm if norm is None else norm
    if norm is None:  # the gate's own norm overflowed, or it was not taken there
        norm = _wide_norm(seen.gate_gradients)
    equal = None
    if recorded_bits is not None and session.loss_bits is not None:
        equal = recorded_bits == session.loss_bits
    return {
        "step": step,
        "loss": math.nan if (loss := scalar(seen.loss)) is None else loss,
        "loss_equal": equal,
        "gradient_norm": math.nan if norm is None else float(norm),
        "learning_rate": _learning_rate(before),
        "loss_scale": _number(runner.values.scale_before),
        "bad": None if bad is None else f"{bad.unit.stage}: {bad.tensor}",
        "rng": before.rng.digest(),
        **totals,
    }


def known(row: Row) -> Row:
    """A row as it is told: None where a table has NaN for a number that there is not.

    A loss that is NaN stays NaN, and so does a gradient norm once there were gradients.
    """
    computed = {"loss"}
    if str(row.get("bad") or "").partition(":")[0] not in _BEFORE_GRADIENTS:
        computed.add("gradient_norm")
    missing = (k for k, v in row.items() if isinstance(v, float) and math.isnan(v))
    return row | dict.fromkeys(k for k in missing if k not in computed)


def _wide_norm(gradients: Mapping[str, Tensor] | None) -> float | None:
    """The norm of all gradients in float64, whose squares overflow only far above float32's."""
    if not gradients:
        return None
    norms = [float(g.detach().double().norm()) for g in gradients.values() if not g.is_sparse]
    return math.hypot(*norms)


def _parameters(state: StepState) -> dict[str, Tensor]:
    if state.model is None:
        return {}
    info = state.model.info
    return {n: t for n, t in state.model.tensors.items() if info[n].kind == "parameter"}


def _ratio(stats: TensorStats, tensor: Tensor, after: StepState | None, name: str) -> float:
    new = None if after is None else _parameters(after).get(name)
    if new is None or new.shape != tensor.shape or not tensor.is_floating_point():
        return math.nan
    moved = _rms(tensor_stats(new.detach().double().cpu() - tensor.detach().double().cpu()))
    size = _rms(stats)
    return moved / size if size > 0 else math.nan


def _rms(stats: TensorStats) -> float:
    return math.nan if stats.mean_square is None else math.sqrt(stats.mean_square)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _largest(rows: list[Row], key: str) -> float:
    values = [row[key] for row in rows if not math.isnan(row[key])]
    return max(values) if values else math.nan


def _learning_rate(state: StepState) -> float:
    for groups in state.hyperparameters:
        for group in groups:
            value = group.get("lr")
            return math.nan if value is None else float(value)
    return math.nan
