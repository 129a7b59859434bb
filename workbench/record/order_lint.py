"""Order lint: what a loop does in the wrong order, or never, told once per run.

None of it is a failure; each is a way in which a failure later goes unseen or spreads. What is said
here was seen in this run's own steps, never guessed from source code.
"""

from __future__ import annotations

import logging
import math
import sys
from typing import TYPE_CHECKING, Any, Final

from workbench.record.session import Session
from workbench.step.early import overrides
from workbench.step.gates import scaler_enabled
from workbench.step.protocol import TrainingStep
from workbench.step.runner import StepRunner
from workbench.step.values import scalar

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from torch.optim import Optimizer

    from workbench.record.recorder import Recorder

logger = logging.getLogger("workbench")
PATIENCE: Final = 20
"""Steps after which a loop that has not clipped yet is said never to clip."""
_FRAMES: Final = 12

REMARKS: Final = {
    "never_clips": (
        f"No gradient was clipped in the first {PATIENCE} steps, so a single exploding step would "
        "reach the parameters in full. Give max_norm to s.gradients(), or max_grad_norm to the "
        "training step."
    ),
    "clips_before_unscale": (
        "Gradients were clipped while the loss scale was still in them, so the threshold was "
        "compared with a norm that is the loss scale times too large. Call scaler.unscale_() "
        "before clipping."
    ),
    "scaled_norm": (
        "The gradient norm of this loop still has the loss scale in it: it says nothing about the "
        "size of the gradients. Unscale before the norm is read."
    ),
    "optimizer_past_the_scaler": (
        "optimizer.step() was called directly although a loss scaler is on, so scaled or "
        "non-finite gradients reach the parameters. Call scaler.step(optimizer)."
    ),
    "scheduler_on_skipped_step": (
        "A learning-rate scheduler advanced in a step whose update was skipped, so the schedule "
        "runs ahead of the updates. Step it only when the update was made (result.updated)."
    ),
    "filtered_loss": (
        "A finite value was logged under the name of a loss that was non-finite, so the log hides "
        "the failure. Log the loss itself; workbench.StrictJsonLogger writes NaN and Inf."
    ),
    "no_gate": (
        "An update was made without s.loss() or s.gradients() before it, so nothing kept "
        "non-finite values from the parameters. Call both, and update only where they return True."
    ),
    "no_replay": (
        "The recorder was given no training step with forward and loss, so bundles of this run "
        "hold the evidence but cannot be replayed until such a step is passed with --step. Give "
        "Recorder(step=...) a TrainingStep whose forward and loss do what the loop does."
    ),
}
"""Every remark: its name, and what is told."""
MAY_BE_MEANT: Final = frozenset({"never_clips", "no_replay"})
"""Remarks about a choice that many make on purpose: told without a warning."""


class OrderLint:
    """Watches the order of a run's steps.

    Args:
        optimizers: The optimizers.
        scaler: The loss scaler, or None.
        schedulers: The learning-rate schedulers.

    Attributes:
        found: Names of the remarks so far, in the order they were made.
    """

    def __init__(
        self, optimizers: Sequence[Optimizer], scaler: Any, schedulers: Sequence[Any]
    ) -> None:
        self.found: list[str] = []
        self._scaler = scaler
        self._schedulers = schedulers
        self._epochs = self._now()
        self._skipped = False
        self._ran_ahead = False
        self._steps = 0
        self._clipped = False
        self._past_the_scaler = False
        if scaler_enabled(scaler):
            for optimizer in optimizers:
                optimizer.register_step_pre_hook(self._look_at_caller)

    def begin(self) -> None:
        """Take in the start of a step: what a scheduler did since belongs to the one before."""
        if self._schedulers:
            self._look_at_schedulers()

    def look(self, session: Session, runner: StepRunner) -> list[str]:
        """Take in a finished step.

        Args:
            session: The recorded step.
            runner: The runner, with what the step computed.

        Returns:
            Names of the remarks that are new.
        """
        self._steps += 1
        records = runner.values.optimizer_records
        self._skipped = any(one.skipped_by != "none" for one in records)
        self._look_at_schedulers()
        self._clipped = self._clipped or runner.values.grad_norm is not None
        if not self._unusual(session, runner):
            return []
        seen = {
            "never_clips": not self._clipped and self._steps == PATIENCE,
            **self._scaled(runner),
            "optimizer_past_the_scaler": self._past_the_scaler,
            "scheduler_on_skipped_step": self._ran_ahead,
            "filtered_loss": session.logged_loss is not None
            and math.isfinite(session.logged_loss)
            and not _finite(scalar(runner.loss_value)),
            "no_gate": session.ungated_update,
        }
        new = [name for name, is_so in seen.items() if is_so and name not in self.found]
        self.found += new
        return new

    @property
    def due(self) -> bool:
        """Whether the step that begins is the one after which a loop is said never to clip."""
        return self._steps + 1 == PATIENCE

    @property
    def asks(self) -> bool:
        """Whether something was seen since the last remark that is to be remarked on."""
        return (self._past_the_scaler and "optimizer_past_the_scaler" not in self.found) or (
            self._ran_ahead and "scheduler_on_skipped_step" not in self.found
        )

    def take_calm(self, clipped: bool) -> None:
        """Take in a step without skip in which nothing is to be remarked on.

        Args:
            clipped: Whether its gradients were clipped.
        """
        self._steps += 1
        self._skipped = False
        if self._schedulers:
            self._epochs = self._now()
        self._clipped = self._clipped or clipped

    def _unusual(self, session: Session, runner: StepRunner) -> bool:
        """Whether there may be anything to remark on: the usual step is told from few values."""
        return (
            self._steps == PATIENCE
            or self._scaler is not None
            or bool(self._schedulers)
            or session.logged_loss is not None
            or session.ungated_update
        )

    def remark(self, name: str) -> bool:
        """Note what an integration knows of its library's loop; whether it is new.

        Args:
            name: A name of ``REMARKS``.
        """
        if name in self.found:
            return False
        self.found.append(name)
        return True

    def _scaled(self, runner: StepRunner) -> dict[str, bool]:
        scaled = scaler_enabled(runner.scaler) and runner.values.unscaled is False
        clipped = scaled and runner.values.grad_norm is not None
        return {"clips_before_unscale": clipped, "scaled_norm": clipped}

    def _look_at_schedulers(self) -> None:
        now = self._now()
        moved, self._epochs = now != self._epochs, now
        self._ran_ahead = self._ran_ahead or (moved and self._skipped)

    def _now(self) -> list[Any]:
        return [getattr(scheduler, "last_epoch", None) for scheduler in self._schedulers]

    def _look_at_caller(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Before an optimizer's step: whether the scaler is among the callers."""
        del optimizer, args, kwargs
        frame: FrameType | None = sys._getframe(1)
        for _ in range(_FRAMES):
            if frame is None:
                break
            if frame.f_locals.get("self") is self._scaler:
                return
            frame = frame.f_back
        self._past_the_scaler = True


def _finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)


def tell_no_replay(recorder: Recorder, session: Session) -> None:
    """Say while it can still be changed that bundles of a low-level loop will not replay."""
    step = recorder.step_object
    needed = ("forward", "loss")
    has = all(callable(getattr(step, name, None)) for name in needed)
    if has and (not isinstance(step, TrainingStep) or all(overrides(step, n) for n in needed)):
        return
    session.notes.append("no training step with forward and loss was given: a replay needs one")
    if recorder.order.remark("no_replay"):
        logger.info("%s", REMARKS["no_replay"])
