"""A quiet step of the user's own loop: what the with-block tells, at the least cost.

Every method says whether it did all that is to be done. Where it did not, the step wakes up: a
session and a runner stand where the loop is, and go on as in any other step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from workbench.record import settings, soft
from workbench.record.order_lint import tell_no_replay
from workbench.record.quiet_step import QuietStep
from workbench.record.result import StepResult
from workbench.step.early import overrides
from workbench.step.gates import found_inf, largest_gradient
from workbench.step.rng import capture_rng
from workbench.step.runner import Outcome
from workbench.step.stages import Stage, Unit
from workbench.step.values import scalar

if TYPE_CHECKING:
    from workbench.record.recorder import Recorder
    from workbench.record.running import RecordingRunner
    from workbench.record.session import Session
    from workbench.step.proof import OptimizerRecord


class QuietBlock:
    """One quiet step of the user's own loop.

    Args:
        recorder: The recorder.
        begun: What was kept of the step.
    """

    def __init__(self, recorder: Recorder, begun: QuietStep) -> None:
        self._recorder = recorder
        self._begun = begun
        self._done: list[tuple[Stage, int]] = []
        self._gated = False
        self._logged: float | None = None
        self._micro_step = 0

    def micro_batch(self, i: int, batch: Any) -> bool:
        """A micro-batch begins."""
        begun = self._begun
        if begun.updating or len(begun.losses) != i or self._gated:
            return False
        new = batch is not None and i >= len(begun.batches)
        if new and not self._recorder.quiet.begin_micro_batch(begun, batch):
            return False
        if i > self._micro_step:
            begun.largest.append(largest_gradient(self._recorder.model))
        self._micro_step = i
        begun.unit_rng["main", i] = capture_rng(begun.generators)
        return True

    def autocast_is(self, dtype: str) -> None:
        """Forward runs in this autocast region."""
        self._begun.autocast = dtype

    def loss(self, loss: Tensor, components: Mapping[str, Tensor] | None) -> bool:
        """The loss of a micro-step, before its backward."""
        begun, parts = self._begun, dict(components or {})
        if len(begun.losses) != self._micro_step or self._gated:
            return False
        if not self._recorder.quiet.gates.loss(begun, loss, parts):
            return False
        begun.losses.append(loss)
        begun.components.append(parts)
        self._note("loss")
        return True

    def gradients(self) -> bool:
        """The gradients are complete."""
        recorder, begun = self._recorder, self._begun
        if len(begun.losses) != self._micro_step + 1 or self._gated:
            return False
        if begun.scale is not None:
            for optimizer in recorder.optimizers:
                if found_inf(recorder.scaler, optimizer) is None:
                    recorder.scaler.unscale_(optimizer)  # type: ignore[union-attr]
            begun.unscaled = True
        if not recorder.quiet.gates.gradients(begun):
            return False
        self._note("reduce")
        begun.norm = begun.gate_norm
        return True

    def clipped(self, norm: Tensor | float | None, max_norm: float | None) -> bool:
        """Gradients were clipped."""
        begun = self._begun
        if not self._gated or self._done[-1][0] != "reduce":
            return False
        begun.max_norm = None if max_norm is None else float(max_norm)
        begun.grad_norm = norm
        if not self._recorder.quiet.gates.norm(begun):
            return False
        self._note("clip")
        return True

    def before_update(self) -> bool:
        """The loop is about to update."""
        if not self._gated or self._begun.updating or self._recorder.quiet.gates.jumps(self._begun):
            return False
        self._begun.let_go(self._recorder)
        return True

    def after_update(self, records: Sequence[OptimizerRecord]) -> bool:
        """The update was made; what the optimizers did."""
        begun = self._begun
        begun.records += records
        begun.updated = True
        self._note("update")
        if not self._recorder.quiet.gates.update(begun):
            return False
        self._note("after_update")
        return True

    def logging(self, values: Mapping[str, Any]) -> None:
        """The loop logs values."""
        found = self._recorder.guard("logging gate", lambda: soft.scan_values(values))
        if found and self._begun.soft_gates is not None:
            self._begun.soft_gates += found
        self._logged = scalar(values.get("loss"))

    def end(self) -> StepResult | None:
        """The block was left; the result, or None where the step is not over."""
        if not self._begun.updated or self._recorder.order.asks:
            return None
        # a scheduler may have been stepped since: a record says the rates at its end
        self._begun.rates = settings.learning_rates(self._recorder.optimizers)
        return self._recorder.quiet.end(self._begun)

    # -- waking up ---------------------------------------------------------------------------------

    def wake(self, batches: list[Any]) -> tuple[Session, RecordingRunner]:
        """Make the session and the runner of a step that goes on as any other.

        Args:
            batches: Its batches so far, as the loop has them.
        """
        recorder, begun = self._recorder, self._begun
        session, runner = recorder.quiet.wake(begun, batches)
        recorder.guard("replay check", lambda: tell_no_replay(recorder, session))
        runner.note_largest(begun.largest)
        session.logged_loss = self._logged
        for stage, micro_step in self._done:
            unit = self._unit(stage, micro_step, runner)
            session.outcomes.append(Outcome(unit))
            if stage == "reduce":
                session.gradient_unit = unit
        return session, runner

    def _note(self, stage: Stage) -> None:
        self._done.append((stage, self._micro_step))
        self._gated = self._gated or stage == "reduce"

    def _unit(self, stage: Stage, micro_step: int, runner: RecordingRunner) -> Unit:
        if stage == "reduce":
            if self._begun.scale is not None:
                stage = "unscale"
            elif not overrides(runner.step, "after_backward"):
                stage = "backward"
        return Unit(stage, "main", micro_step)
