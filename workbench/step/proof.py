"""Proof that an optimizer call changed parameters: a call is not an update.

A fused optimizer under a loss scaler returns normally and fires its post-hooks although it skipped,
so neither the call nor a hook proves anything (DESIGN rule 8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from workbench.numerics.dense import local_values
from workbench.step.gates import found_inf

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

SAMPLES = 8
"""Elements looked at per tensor when the optimizer keeps no ``step`` counter."""
LARGEST = 4
"""How many of the largest parameters are sampled."""

Updated = Literal["yes", "no", "nothing_changed", "unknown"]


@dataclass(frozen=True)
class OptimizerRecord:
    """What one optimizer did in one step.

    Attributes:
        attempted: Whether its update was asked for.
        updated: ``yes`` with proof, ``no`` when it was skipped, ``nothing_changed`` when it ran
            and no looked-at value moved, ``unknown`` when there was nothing to look at.
        skipped_by: ``scaler``, ``gate`` or ``none``.
        found_inf: What the scaler recorded, or None without one.
        consecutive_skips: Scaler skips of this optimizer in a row, this step included; only the
            recorder counts them.
    """

    attempted: bool
    updated: Updated
    skipped_by: Literal["scaler", "gate", "none"]
    found_inf: float | None
    consecutive_skips: int = 0


class UpdateProof:
    """Look at an optimizer before its step, then judge afterwards."""

    def __init__(self, optimizer: Optimizer, scaler: Any) -> None:
        self._optimizer = optimizer
        self._scaler = scaler
        self._found_inf = found_inf(scaler, optimizer)
        self._counter = _step_counter(optimizer)
        self._samples = None if self._counter is not None else _samples(optimizer)

    def judge(self) -> OptimizerRecord:
        """Compare with the state before the step."""
        seen = self._found_inf
        if seen:
            return OptimizerRecord(True, "no", "scaler", seen)
        return OptimizerRecord(True, self._moved(), "none", seen)

    def _moved(self) -> Updated:
        counter = _step_counter(self._optimizer)
        if counter is not None:  # state appears with the first real step
            advanced = counter != self._counter
            return "yes" if advanced else "nothing_changed"
        after = _samples(self._optimizer)
        if self._samples is None or not after:
            return "unknown"
        same = all(torch.equal(a, b) for a, b in zip(self._samples, after, strict=True))
        return "nothing_changed" if same else "yes"


def _step_counter(optimizer: Optimizer) -> float | None:
    """Read the first ``step`` counter in the optimizer's state, if it keeps one."""
    for state in optimizer.state.values():
        if isinstance(state, dict) and "step" in state:
            return float(state["step"])
    return None


def _samples(optimizer: Optimizer) -> list[Tensor]:
    """Copy a few elements of the largest parameters that have a gradient."""
    parameters = [
        p for group in optimizer.param_groups for p in group["params"] if p.grad is not None
    ]
    parameters.sort(key=lambda p: -p.numel())
    samples = []
    with torch.no_grad():
        for parameter in parameters[:LARGEST]:
            held = local_values(parameter)  # of a sharded parameter, this rank's part
            if held is None or not held.numel():
                continue
            flat = held.reshape(-1)
            # bytes, so that NaN compares equal to itself
            picked = flat[:: max(1, flat.numel() // SAMPLES)][:SAMPLES].clone()
            samples.append(picked.view(torch.uint8))
    return samples
