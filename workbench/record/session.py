"""One recorded step, whoever runs it: the snapshot, what the gates found, what was computed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from workbench.numerics.digests import tensor_digest
from workbench.record import soft
from workbench.record.result import StepResult
from workbench.record.trip import Finding, Trip
from workbench.step.digests import loss_bits, rng_digest
from workbench.step.domains import batch_fields
from workbench.step.names import named_parameters
from workbench.step.runner import Outcome
from workbench.step.snapshots import Kept, keep
from workbench.step.stages import Stage, Unit
from workbench.step.state import StepSnapshot

if TYPE_CHECKING:
    from workbench.record.recorder import Recorder
    from workbench.record.running import RecordingRunner


class Session:
    """What the recorder knows of the running step.

    Args:
        recorder: The recorder.
        micro_batches: The batches, as far as they are known.
        sample_ids: Identifiers of the samples, as the user gives them.
        capture: Reason to make a bundle of this step in any case.
        low_level: Whether the user's own loop runs the step.
        kept: What was kept already of a step that begins as most do; None to keep it now.
    """

    def __init__(
        self,
        recorder: Recorder,
        micro_batches: Sequence[Any],
        sample_ids: Any = None,
        capture: str | None = None,
        low_level: bool = False,
        kept: StepSnapshot | None = None,
    ) -> None:
        self.recorder = recorder
        self.step_index = recorder.step_index
        self.capture = capture or (recorder.requested() if kept is None else None)
        self.sample_ids = sample_ids
        self.low_level = low_level
        self.started = time.time()
        self.finished: StepResult | None = None
        self.text = ""
        self.raising = False
        self.completeness: dict[str, str] = {}
        self.failures_before = recorder.failures.total
        self.notes: list[str] = []
        self.outcomes: list[Outcome] = []
        self.soft_gates: list[dict[str, Any]] = []
        self.batch_fingerprint: str | None = None
        self.batch_summary: dict[str, Any] | None = None
        self.snapshot: StepSnapshot | None = None
        self.deep = kept is None and recorder.takes_deep_scan(self.step_index)
        self.keep_through_update = self.capture is not None or recorder.ring.wants_state(
            recorder.step_index
        )
        self.sums: dict[str, int] | None = None
        # what a low-level loop tells
        self.autocast: str | None = None
        self.max_grad_norm: float | None = None
        self.logged_loss: float | None = None
        self.ungated_update = False
        self.seen_in_full = False
        self.checkpoints: dict[str, Any] | None = None
        # what a trip freezes
        self.trip: Trip | None = None
        self.settled = False
        self.stopped_at: Stage | None = None
        self.loss_bits: str | None = None
        self.rng_after: str | None = None
        # what is decided with other ranks
        self.held: Finding | None = None
        self.decided_at: list[str] = []
        self.decision: dict[str, Any] = {}
        self.first_trip: Trip | None = None
        self.reduce: dict[str, Any] | None = None
        self.contribution: dict[str, Any] | None = None
        self.asks_again = False
        self.alerted_by: int | None = None
        self.buffers_seen = False
        self.update_ran_before_trip = False
        self.gradients: dict[str, Kept] = {}
        self.gradient_unit: Unit | None = None
        self.bad_micro_step: int | None = None
        self._start(micro_batches, kept)

    def _start(self, micro_batches: Sequence[Any], kept: StepSnapshot | None) -> None:
        recorder = self.recorder
        recorder.guard("order lint", recorder.order.begin)
        if kept is not None:
            recorder.guard("look at the batch", lambda: self.look_at_batches(kept.micro_batches))
            self.snapshot = kept
            return
        recorder.guard("snapshot", lambda: self._begin(micro_batches))
        snapshot = self.snapshot
        if snapshot is not None and recorder.ring.wants_state(self.step_index):
            recorder.guard("recovery point", lambda: recorder.ring.begin(snapshot))
        if recorder.ring.every > 0 and not self.keep_through_update:
            self.sums = recorder.guard("fingerprint", lambda: recorder.ring.sums(recorder.model))

    def _begin(self, micro_batches: Sequence[Any]) -> None:
        recorder = self.recorder
        if micro_batches:  # before the snapshot: numpy's view of a shared tensor would copy it
            recorder.guard("look at the batch", lambda: self.look_at_batches(micro_batches))
        self.snapshot = StepSnapshot(
            recorder.model,
            recorder.optimizers,
            recorder.scaler,
            recorder.schedulers,
            micro_batches,
            self.step_index,
            keep_optimizers=(
                self.low_level or self.keep_through_update or recorder.may_update_early
            ),
            generators=recorder.generators,
            step=recorder.step_object,
            low_level=self.low_level,
            loaders=recorder.loaders.seeds(),
            prepared=recorder.prepared,
        )

    def look_at_batches(self, micro_batches: Sequence[Any]) -> None:
        """Fingerprint the batches and pass them through the soft gate."""
        fields = [batch_fields(batch) for batch in micro_batches]
        self.batch_fingerprint = soft.fingerprint_fields(fields)
        self.batch_summary = soft.summarize_fields(micro_batches, fields[0])
        if self.recorder.policy.input == "off":
            return
        self.soft_gates = [gate for gate in self.soft_gates if gate["where"] != "batch"]
        self._scan_batches(fields, self.deep)

    def look_deeper(self) -> None:
        """Scan the large batch fields too, once something in this step was unusual."""
        if self.deep or self.snapshot is None or self.recorder.policy.input == "off":
            return
        self.deep = True
        self.soft_gates = [gate for gate in self.soft_gates if gate["where"] != "batch"]
        self._scan_batches([batch_fields(one) for one in self.snapshot.micro_batches], True)

    def _scan_batches(self, batches: Sequence[soft.Named], deep: bool) -> None:
        for micro_step, fields in enumerate(batches):
            found = soft.scan_fields("batch", fields, deep)
            self.soft_gates += [entry | {"micro_step": micro_step} for entry in found]

    @property
    def takes_quick_scan(self) -> bool:
        """Whether nothing of this step asks for more than the finiteness of its update."""
        recorder = self.recorder
        scan, every = recorder.scan, recorder.policy.deep_scan_every
        due = every > 0 and self.step_index % every == 0
        return not (self.keep_through_update or self.settled or self.deep or due or scan.hinted)

    def before_unit(self, unit: Unit) -> None:
        """Note random states before micro-steps."""
        if self.snapshot is not None and unit.stage == "input":
            self.snapshot.before_unit(unit.phase, unit.micro_step)

    def before_update(self, will_skip: bool, last_phase: bool = True, jumped: bool = False) -> None:
        """Let go of what an update would have to copy, unless it is wanted afterwards.

        Args:
            will_skip: The scaler will skip: nothing is written, so keeping stays free.
            last_phase: No later phase of this step can trip before its own update.
            jumped: Loss or gradient norm will make an alert: the state is kept for its bundle.
        """
        if not last_phase or self.snapshot is None or self.settled or will_skip:
            return
        if self.keep_through_update:
            self.recorder.guard("recovery point", self._let_go_of_sources)
            return
        if jumped:
            self.snapshot.settle_optimizers()
            self.keep_gradients()
            return
        self.snapshot.drop_before_update()
        self.gradients = {}

    def _let_go_of_sources(self) -> None:
        """Spare the update what copies in host memory make needless."""
        snapshot = self.snapshot
        if snapshot is None:
            return
        kept = [copies.before_update(self.capture is not None) for copies in snapshot.copies]
        if not all(kept):
            self.notes.append(
                "no recovery point: its copy would have held the device up for longer than a step"
            )
            snapshot.drop_before_update()

    def after_unit(self, outcome: Outcome, runner: RecordingRunner, at_gate: bool) -> None:
        """Look at outputs, and keep the gradients as the gate saw them."""
        self.outcomes.append(outcome)
        values = runner.values
        if outcome.unit.stage == "forward" and values.outputs and outcome.exception is None:
            found = soft.scan("outputs", values.outputs[-1], self.deep)
            self.soft_gates += [e | {"micro_step": outcome.unit.micro_step} for e in found]
        if at_gate and not self.settled:
            self.gradient_unit = outcome.unit
            if outcome.status != "clean":
                self._note_micro_step(runner.first_bad_micro_step())
            if self.keep_through_update or outcome.status != "clean":
                self.keep_gradients()

    def note_reduced(self) -> None:
        """The gradient gate caught what the reduction made: the stage is ``reduce``."""
        last = self.outcomes[-1]
        self.outcomes[-1] = replace(last, unit=replace(last.unit, stage="reduce"))
        self.gradient_unit = self.outcomes[-1].unit

    def _note_micro_step(self, micro_step: int | None) -> None:
        self.bad_micro_step = micro_step
        if micro_step is not None:
            self.notes.append(f"gradients were non-finite first after micro-step {micro_step}")

    def keep_gradients(self) -> None:
        """Take snapshots of all gradients."""
        self.gradients = {
            name: keep(parameter.grad)
            for name, parameter in named_parameters(self.recorder.model)
            if parameter.grad is not None
        }

    def settle(self, loss: Tensor | None, stage: Stage | None, updated: bool) -> None:
        """Freeze what the rest of the step would change; only the first call does anything.

        Args:
            loss: The total loss so far.
            stage: The stage that ran last, None when the step ran to its end.
            updated: Whether an optimizer step was made before this moment.
        """
        if self.settled:
            return
        self.settled = True
        self.stopped_at = stage
        self.rng_after = rng_digest(self.recorder.step_object)
        self.loss_bits = None if loss is None else loss_bits(loss)
        self.update_ran_before_trip = updated
        if self.snapshot is not None and not updated:
            self.snapshot.settle_optimizers()

    def gradient_digests(self) -> dict[str, str]:
        """Digest the gradients as the gate saw them, by parameter name."""
        return {name: tensor_digest(kept.tensor) for name, kept in self.gradients.items()}
