"""What a recorded step returns to the training loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from workbench.step.proof import OptimizerRecord

Skipped = Literal["scaler", "gate", "none"]


@dataclass(frozen=True)
class StepResult:
    """The result of one training step.

    Attributes:
        loss: The total loss, None when it was not reached.
        grad_norm: The total gradient norm before clipping, None when it was not computed.
        updated: Whether every optimizer is proved to have changed parameters.
        skipped_by: What withheld the update: the loss ``scaler``, the recorder's ``gate`` or
            ``none``.
        incident: The bundle of this step, if one was made.
        step: Number of the step.
        loss_scale: The loss scale the step used, None without a scaler.
        loss_components: Parts of the loss by name, summed over micro-batches.
        consecutive_skips: Scaler skips in a row, of the optimizer skipped longest.
        optimizers: What each optimizer did, in the recorder's order.
    """

    loss: float | None
    grad_norm: float | None
    updated: bool
    skipped_by: Skipped
    incident: Path | None
    step: int
    loss_scale: float | None = None
    loss_components: dict[str, float] = field(default_factory=dict)
    consecutive_skips: int = 0
    optimizers: tuple[OptimizerRecord, ...] = ()

    def metrics(self) -> dict[str, float]:
        """Numbers for a metrics logger; what is unknown is left out."""
        found: dict[str, float | None] = {
            "loss": self.loss,
            "grad_norm": self.grad_norm,
            "loss_scale": self.loss_scale,
            "updated": float(self.updated),
            "skipped": float(self.skipped_by != "none"),
            "consecutive_skips": float(self.consecutive_skips),
        }
        if len(self.optimizers) > 1:
            for number, one in enumerate(self.optimizers):
                found[f"updated.{number}"] = float(one.updated == "yes")
                found[f"skipped.{number}"] = float(one.skipped_by != "none")
                found[f"consecutive_skips.{number}"] = float(one.consecutive_skips)
        found |= {f"loss.{name}": value for name, value in self.loss_components.items()}
        return {name: float(value) for name, value in found.items() if value is not None}
