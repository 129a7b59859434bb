"""The step's runner in training: its gates cost little, and training does not notice their failure.

A gate may use what the step computes anyway: the norm that clipping takes, or what the loss scaler
found. Whatever such a shortcut cannot prove finite is looked at in full, as in a replay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from workbench.numerics.counts import all_finite
from workbench.record.trip import alone
from workbench.record.update_size import Sample
from workbench.step import gates
from workbench.step.early import overrides
from workbench.step.names import named_parameters
from workbench.step.protocol import TrainingStep
from workbench.step.runner import Outcome, StepRunner
from workbench.step.stages import Stage, Unit

if TYPE_CHECKING:
    from workbench.record.recorder import Recorder
    from workbench.record.session import Session


_UNGATED = frozenset({"input", "forward", "update", "logging"})


@lru_cache(maxsize=256)
def _clean(unit: Unit) -> Outcome:
    return Outcome(unit)


def clips_by_default(step: Any) -> bool:
    """Whether a step clips as ``TrainingStep.clip`` does, whose norm then proves what it read."""
    return getattr(step, "max_grad_norm", None) is not None and not overrides(step, "clip")


class RecordingRunner(StepRunner):
    """A runner whose gates are the recorder's own work.

    Args:
        recorder: The recorder.
        session: The recorded step.
    """

    def __init__(self, recorder: Recorder, session: Session) -> None:
        step = recorder.step_object
        super().__init__(
            TrainingStep() if step is None else step,
            recorder.model,
            recorder.optimizers,
            recorder.scaler,
            before_unit=self._before,
        )
        self.held = recorder.held
        self._recorder = recorder
        self._session = session
        self._total_norm: Tensor | None = None
        self._largest: list[Tensor | None] = []
        self.update_ratio: Tensor | None = None
        self._summed: tuple[int, Tensor | None] = (0, None)
        self._clips_by_default = clips_by_default(step)

    @property
    def loss_value(self) -> Tensor | None:
        """The total loss so far, added up once for each loss that joined it."""
        number, total = self._summed
        if number != len(self.values.losses):
            total = StepRunner.loss_value.fget(self)  # type: ignore[attr-defined]
            self._summed = (len(self.values.losses), total)
        return total

    def run_on(self) -> Outcome | None:
        """Run units until one needs the recorder's attention; None at the end of the step.

        With other ranks every unit does. Alone only what was not clean does: of the rest is noted
        here what ``Recorder.after_unit`` would note.
        """
        session, recorder = self._session, self._recorder
        alone_now = recorder.agree is alone
        while self.position < len(self.plan):
            unit = self.plan[self.position]
            stage = unit.stage
            if stage == "update":
                last = unit.phase == self.step_phases[-1]
                session.before_update(self.will_skip, last, recorder.jumped(self))
            if not alone_now:
                return self.advance()
            outcome = self._run_one(unit)
            if outcome.status != "clean":
                return outcome
            at_gate = self.at_gradient_gate
            if at_gate or stage == "forward":
                recorder.guard("record", partial(session.after_unit, outcome, self, at_gate))
            else:
                session.outcomes.append(outcome)
        return None

    def stand_behind(self, stage: Stage) -> Unit:
        """Stand behind a stage of a step that another runner began; its unit.

        What ran before it was clean, and is noted as ``run_on`` would have noted it.
        """
        session, scaled = self._session, gates.scaler_enabled(self.scaler)
        for unit in self.plan:
            self.position += 1
            if unit.stage == stage:
                return unit
            outcome = _clean(unit)
            if self.at_gradient_gate:
                outcome = Outcome(self._gradient_unit(unit, scaled))
                session.gradient_unit = outcome.unit
            session.outcomes.append(outcome)
        raise AssertionError(stage)

    def gate(self, unit: Unit, in_full: bool) -> Outcome:
        """The gate of a unit that ran.

        Args:
            unit: The unit.
            in_full: Something non-finite was seen already: look at everything, as in a replay.
        """
        if not in_full:
            return self._gate(unit)
        self._masks_before = self._masks_now()
        outcome = self._recorder.guard("gate", lambda: StepRunner._gate(self, unit))
        return Outcome(unit) if outcome is None else outcome

    def _run_one(self, unit: Unit) -> Outcome:
        """Do what ``advance`` does, without a context for the gate."""
        self.position += 1
        self._before(unit)
        try:
            self._run(unit)
        except Exception as error:  # noqa: BLE001 - handed to the caller, who re-raises it unchanged
            return Outcome(unit, "bad", (), error)
        return self._gate(unit)

    def _before(self, unit: Unit) -> None:
        if unit.stage != "input":
            return
        self._recorder.guard("random state", lambda: self._session.before_unit(unit))

    def _buffer_masks(self) -> dict[str, gates.BadSet]:
        # the snapshot has the buffers as they were; they are looked at only when one is bad now
        return {} if self._session.snapshot is not None else super()._buffer_masks()

    def _gate(self, unit: Unit) -> Outcome:
        if unit.stage in _UNGATED or (unit.stage == "backward" and len(self._batches) == 1):
            return _clean(unit)
        outcome = self._recorder.guard("gate", partial(self._cheap_gate, unit))
        return Outcome(unit) if outcome is None else outcome

    def _cheap_gate(self, unit: Unit) -> Outcome:
        if unit.stage == "backward" and len(self._batches) > 1:
            self.note_micro_step()
        if unit.stage == "loss" and self._loss_is_finite():
            return _clean(unit)
        if self._is_gradient_gate(unit) and self._gradients_proved_finite():
            return Outcome(self._gradient_unit(unit, unit.stage == "unscale"))
        if unit.stage == "after_update" and self._update_looks_finite():
            return Outcome(unit)
        return StepRunner._gate(self, unit)

    def _loss_is_finite(self) -> bool:
        loss = self.values.losses[-1]
        plain = type(loss) is Tensor and loss.dim() == 0 and loss.is_floating_point()
        return plain and not self.values.components[-1] and math.isfinite(loss.item())

    def will_skip_too(self) -> None:
        """Another rank's scaler skips, and this one was told to."""
        self._will_skip = True

    def note_micro_step(self) -> None:
        """Note the largest gradient so far, once a micro-step's backward has run; no host read."""
        self._largest.append(gates.largest_gradient(self.model))

    def note_largest(self, found: Sequence[Tensor | None]) -> None:
        """Take over what ``note_micro_step`` would have noted before this runner was made."""
        self._largest += found

    def first_bad_micro_step(self) -> int | None:
        """The micro-step after which a gradient was non-finite first; read once one tripped."""
        for micro_step, largest in enumerate(self._largest):
            if largest is not None and not math.isfinite(float(largest)):
                return micro_step
        return None

    def _is_gradient_gate(self, unit: Unit) -> bool:
        scaled = gates.scaler_enabled(self.scaler)
        return unit.stage == ("unscale" if scaled else "reduce")

    # -- gradients --------------------------------------------------------------------------------

    def _gradients_proved_finite(self) -> bool:
        if self._scaler_proves():
            return True
        if not self._clips_by_default:
            return False
        found = [p.grad for _, p in named_parameters(self.model) if p.grad is not None]
        if not found or any(type(grad) is not Tensor for grad in found):
            return False
        # the same call as clipping makes, so clipping can use it with the same bits
        self._total_norm = torch.nn.utils.get_total_norm(found)
        self.values.gate_norm = float(self._total_norm)
        return math.isfinite(self.values.gate_norm)

    def _scaler_proves(self) -> bool:
        """Whether the scaler looked at every gradient and dividing by its scale cannot overflow."""
        scale = self.values.scale_before
        if scale is None or not 1.0 <= scale < math.inf:
            return False
        seen = [gates.found_inf(self.scaler, optimizer) for optimizer in self.optimizers]
        if any(value is None or value != 0.0 for value in seen):
            return False
        held = gates.held_by(self.optimizers)
        return all(id(p) in held for _, p in named_parameters(self.model) if p.grad is not None)

    def _clip(self, unit: Unit) -> None:
        norm, self._total_norm = self._total_norm, None
        limit = getattr(self.step, "max_grad_norm", None)
        if norm is None or limit is None:
            super()._clip(unit)
            return
        self.values.grad_norm = norm
        torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), limit, norm)

    # -- the update -------------------------------------------------------------------------------

    def _update(self, unit: Unit) -> None:
        before = self.sample_before_update()
        super()._update(unit)
        self.note_update(before)

    def sample_before_update(self) -> Sample | None:
        """Copy a few elements of the largest parameters, where an alert asks for their change."""
        recorder = self._recorder
        if not recorder.monitor.looks_at_updates:
            return None
        return recorder.guard("update sample", lambda: Sample(self.optimizers))

    def note_update(self, before: Sample | None) -> None:
        """Note how large the update was over what it changed; no host read yet."""
        if before is not None:
            self.update_ratio = self._recorder.guard("update sample", before.change)

    # -- after the update -------------------------------------------------------------------------

    def _update_looks_finite(self) -> bool:
        """Look at a share of parameters and optimizer state; False asks for the full gate."""
        if self._recorder.scans_update(self._session, self):
            self._session.seen_in_full = True
            if self._session.takes_quick_scan and self._all_finite_at_once():
                return True
            self._recorder.guard("second moments", self._look_at_second_moments)
            self._masks_before = self._masks_now()
            return False
        buffers = gates.buffers_of(self.model)
        share = self._recorder.scan.share(self.model, self.optimizers)
        if all_finite(buffers) and all_finite(share) and not gates.check_scale(self.scaler):
            return True
        self._masks_before = self._masks_now()
        return False

    def _all_finite_at_once(self) -> bool:
        """Look at everything an update may spoil of a small model, in one call for all of it."""
        tensors: list[Tensor] = [parameter for _, parameter in named_parameters(self.model)]
        tensors += gates.optimizer_state_values(self.optimizers)
        tensors += gates.buffers_of(self.model)
        # the snapshot was dropped before the update, so no copy-on-write sharing is ended here
        return self._recorder.scan.all_finite(tensors) and not gates.check_scale(self.scaler)

    def _look_at_second_moments(self) -> None:
        for name, least in gates.negative_second_moments(self.model, self.optimizers):
            self._session.soft_gates.append(
                {"where": "optimizer_state", "name": name, "least": least}
            )

    def _masks_now(self) -> dict[str, gates.BadSet]:
        snapshot = self._session.snapshot
        return self._masks_before if snapshot is None else snapshot.buffer_masks()
