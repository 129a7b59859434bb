"""Training steps in which nothing is wrong, at the least cost.

Everything a step needs is at hand from the step before, so that only what proves the step clean is
done: keep references and copy-on-write clones, look at the loss, the gradients and what the update
wrote, and note what the ledger's record will be made of. The order of the stages is that of
``step.stages``, and the gates are those of ``RecordingRunner``.

At the first sign that anything is unusual the step goes on as any other: a session and a runner are
made that stand exactly where the step is, and the gate is asked again by them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from workbench.record import settings
from workbench.record.autocast_watch import AutocastWatch
from workbench.record.group import Group
from workbench.record.quiet_begin import Beginning
from workbench.record.quiet_block import QuietBlock
from workbench.record.quiet_gates import QuietGates
from workbench.record.quiet_step import QuietStep
from workbench.record.result import StepResult
from workbench.record.running import RecordingRunner
from workbench.record.session import Session
from workbench.step.digests import loss_bits
from workbench.step.gates import scale_value
from workbench.step.proof import UpdateProof
from workbench.step.runner import Outcome, autocast_of
from workbench.step.stages import Stage
from workbench.step.values import split_loss

if TYPE_CHECKING:
    from workbench.record.recorder import Recorder

Stop = tuple[Stage, Exception | None]
"""Behind which stage a step is to go on as any other, and what the user's code raised there."""


class QuietSteps:
    """Runs the quiet steps of a recorder.

    Args:
        recorder: The recorder.

    Attributes:
        group: The records that wait to be written.
        gates: What looks at the steps.
        autocast: Reads the autocast region of with-blocks.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.group = Group(recorder)
        self.gates = QuietGates(recorder)
        self._begin = Beginning(recorder, self.group)
        self._provenance: dict[str, Any] = {}
        self.autocast = AutocastWatch(recorder.model)

    def step(self, batch: Any, sample_ids: Any) -> StepResult | None:
        """Run a whole step.

        Args:
            batch: The batch.
            sample_ids: Identifiers of the samples.

        Returns:
            The result; None where this step has to be run by a session, and nothing was done yet.
        """
        begun = self.begin(batch, sample_ids, False)
        if begun is None:
            return None
        stop = self._run(begun, batch)
        return self.end(begun) if stop is None else self._leave(begun, batch, *stop)

    def begin(self, batch: Any, sample_ids: Any, low_level: bool) -> QuietStep | None:
        """Keep what a step may need.

        Args:
            batch: The batch.
            sample_ids: Identifiers of the samples.
            low_level: Whether the user's own loop runs it.

        Returns:
            None where this step has to be run by a session, and nothing was done yet.
        """
        try:
            return self._begin(batch, sample_ids, low_level)
        except Exception:  # noqa: BLE001 - the session that runs the step now will say it
            return None

    def begin_micro_batch(self, begun: QuietStep, batch: Any) -> bool:
        """Keep one more micro-batch of a step; whether it is within its domains.

        Args:
            begun: The step.
            batch: The micro-batch.
        """
        if not self._begin.is_within_domains(batch):
            return False
        with torch.no_grad():
            self._begin.keep_batch(begun, batch)
        return True

    def block(self, batches: list[Any], sample_ids: Any) -> QuietBlock | None:
        """Begin a step of the user's own loop.

        Args:
            batches: Its micro-batches, as far as they are known.
            sample_ids: Identifiers of the samples.

        Returns:
            None where this step has to be followed by a session.
        """
        begun = self.begin(batches[0], sample_ids, True) if len(batches) == 1 else None
        if begun is None:
            return None
        if self._recorder.step_object is not None:
            self._recorder.step_object.step_index = begun.index
        return QuietBlock(self._recorder, begun)

    # -- a step that is run here -------------------------------------------------------------------

    def _run(self, begun: QuietStep, batch: Any) -> Stop | None:
        """Run all stages; None where nothing of it needs more than was done."""
        recorder = self._recorder
        recorder.step_object.step_index = begun.index  # type: ignore[union-attr]
        recorder.optimizers[0].zero_grad(set_to_none=True)
        return self._to_the_loss(begun, batch) or self._to_the_gradients(begun) or self._on(begun)

    def _to_the_loss(self, begun: QuietStep, batch: Any) -> Stop | None:
        step: Any = self._recorder.step_object
        try:
            begun.outputs = self._within(step, lambda: step.forward(self._recorder.model, batch))
        except Exception as error:  # noqa: BLE001 - the session raises it again, unchanged
            return "forward", error
        self.gates.outputs(begun)
        try:
            result = self._within(step, lambda: step.loss(begun.outputs, batch))
            loss, components = split_loss(result)
        except Exception as error:  # noqa: BLE001 - the session raises it again, unchanged
            return "loss", error
        begun.losses.append(loss)
        begun.components.append(components)
        return None if self.gates.loss(begun, loss, components) else ("loss", None)

    def _to_the_gradients(self, begun: QuietStep) -> Stop | None:
        recorder = self._recorder
        step: Any = recorder.step_object
        scaled = begun.scale is not None
        stage: Stage = "backward"
        try:
            step.backward(begun.losses[0], recorder.scaler)
            stage = "reduce"
            step.after_backward(recorder.model)
            if not scaled and not self.gates.gradients(begun):
                return "reduce", None
            stage = "unscale"
            step.unscale(recorder.optimizers, recorder.scaler)
        except Exception as error:  # noqa: BLE001 - the session raises it again, unchanged
            return stage, error
        if scaled and not self.gates.gradients(begun):
            return "unscale", None
        begun.unscaled = scaled or None
        return None

    def _on(self, begun: QuietStep) -> Stop | None:
        """From the clipping to the end."""
        recorder = self._recorder
        step: Any = recorder.step_object
        stage: Stage = "clip"
        try:
            self._clip(begun)
            if not self.gates.norm(begun) or self.gates.jumps(begun):
                return "clip", None
            stage = "update"
            begun.let_go(recorder)
            proof = UpdateProof(recorder.optimizers[0], recorder.scaler)
            step.update(recorder.model, recorder.optimizers[0], recorder.scaler)
            begun.records.append(proof.judge())
            stage = "after_update"
            if not self.gates.update(begun):
                return "after_update", None
            stage = "logging"
            step.log(begun.losses[0].detach(), begun.outputs, recorder.model)
        except Exception as error:  # noqa: BLE001 - the session raises it again, unchanged
            return stage, error
        return ("logging", None) if recorder.order.asks else None

    def _within(self, step: Any, work: Callable[[], Any]) -> Any:
        """Run a part of the step in its autocast region."""
        if getattr(step, "autocast", None) is None:
            return work()
        with autocast_of(step, self._recorder.model):
            return work()

    def _clip(self, begun: QuietStep) -> None:
        step: Any = self._recorder.step_object
        norm = begun.total_norm
        if norm is None:
            begun.grad_norm = step.clip(self._recorder.model, self._recorder.optimizers[0])
            return
        begun.grad_norm = norm
        parameters = self._recorder.model.parameters()
        torch.nn.utils.clip_grads_with_norm_(parameters, step.max_grad_norm, norm)

    # -- the end -----------------------------------------------------------------------------------

    def end(self, begun: QuietStep) -> StepResult:
        """End a step that was quiet to its end: note it, and count it.

        Args:
            begun: The step.
        """
        recorder = self._recorder
        recorder.step_index = begun.index + 1
        recorder.order.take_calm(begun.grad_norm is not None)
        if recorder.provenance != self._provenance:
            self._provenance = {**recorder.provenance}
        begun.provenance = self._provenance
        begun.training = recorder.model.training
        begun.precision = settings.precision(recorder.step_object, begun.autocast)
        if recorder.schedulers:
            begun.advanced = recorder.schedulers_advanced()
        if recorder.scaler is not None:
            recorder.previous_scale = begun.scale
        if recorder.monitor.looks_for_jumps:
            recorder.guard("alert", lambda: recorder.monitor.note(begun.number, begun.norm))
        if recorder.ring.every:
            recorder.guard("evidence", lambda: self._keep_in_ring(begun))
        elif recorder.calm.is_wanted:
            recorder.guard("calm step", lambda: recorder.calm.note(begun, recorder))
        begun.finish()
        self.group.add(begun)
        watch = recorder.checkpoints
        if watch is not None:
            in_full = bool(recorder.scan.is_small)
            recorder.guard("checkpoint states", lambda: watch.clean(begun.index, in_full))
        records = tuple(begun.records)
        updated = all(one.updated == "yes" for one in records)
        return StepResult(
            begun.number, begun.norm, updated, "none", None, begun.index, begun.scale,
            begun.parts, 0, records,
        )  # fmt: skip

    def _keep_in_ring(self, begun: QuietStep) -> None:
        snapshot = begun.snapshot(self._recorder)
        self._recorder.ring.add(begun.index, snapshot, loss_bits(begun.total_loss()), begun.sums)

    # -- what is not quiet any more ----------------------------------------------------------------

    def wake(self, begun: QuietStep, batches: list[Any]) -> tuple[Session, RecordingRunner]:
        """Make the session and the runner of a step that goes on as any other.

        What ran so far is in their values; their outcomes are up to the caller.

        Args:
            begun: The step.
            batches: Its batches, as the loop has them.
        """
        recorder = self._recorder
        self.group.write()
        kept = begun.snapshot(recorder)
        session = Session(recorder, batches, begun.sample_ids, None, begun.low_level, kept)
        session.started, session.sums, session.autocast = begun.time, begun.sums, begun.autocast
        session.max_grad_norm = begun.max_norm
        session.soft_gates += begun.soft_gates or []
        recorder.running = session
        runner = RecordingRunner(recorder, session)
        runner.begin(batches, begun.index, clear_gradients=False)
        values = runner.values
        values.scale_before, values.unscaled = begun.scale, begun.unscaled
        values.losses += begun.losses
        values.components += begun.components
        values.gate_norm, values.grad_norm = begun.gate_norm, begun.grad_norm
        values.optimizer_records += begun.records
        if begun.records:
            values.scale_after = scale_value(recorder.scaler)
        return session, runner

    def _leave(
        self, begun: QuietStep, batch: Any, stage: Stage, error: Exception | None
    ) -> StepResult:
        """Go on from behind a stage whose gate is not known to be clean, or that raised."""
        session, runner = self.wake(begun, [batch])
        unit = runner.stand_behind(stage)
        if stage != "forward" or error is None:
            runner.values.outputs.append(begun.outputs)
        if stage == "unscale" and error is None and begun.scale is not None:
            runner.note_unscaled(runner.optimizers)
        outcome = (
            runner.gate(unit, begun.spoiled) if error is None else Outcome(unit, "bad", (), error)
        )
        return self._recorder.go_on(session, runner, outcome)
