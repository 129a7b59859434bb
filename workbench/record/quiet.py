"""A training step in which nothing is wrong, at the least cost.

Everything a step needs is at hand from the step before, so that only what proves the step clean is
done: keep references and copy-on-write clones, look at the loss, the gradients and what the update
wrote, and note what the ledger's record will be made of. The order of the stages is that of
``step.stages``, and the gates are those of ``RecordingRunner``.

At the first sign that anything is unusual the step goes on as any other: a session and a runner are
made that stand exactly where the step is, and the gate is asked again by them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from workbench.numerics.counts import all_finite
from workbench.record import settings, soft
from workbench.record.group import CalmRecord, Group
from workbench.record.quiet_begin import Beginning, Begun
from workbench.record.result import StepResult
from workbench.record.running import RecordingRunner, clips_by_default
from workbench.record.session import Session
from workbench.step.digests import loss_bits
from workbench.step.gates import gradient_norm, optimizer_state_values
from workbench.step.model_snapshot import ModelSnapshot
from workbench.step.proof import OptimizerRecord, UpdateProof
from workbench.step.runner import Outcome, autocast_of, split_loss
from workbench.step.stages import Stage
from workbench.step.state import StepSnapshot
from workbench.step.values import scalar

if TYPE_CHECKING:
    from workbench.record.recorder import Recorder


class QuietSteps:
    """Runs the quiet steps of a recorder.

    Args:
        recorder: The recorder.

    Attributes:
        group: The records that wait to be written.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.group = Group(recorder)
        self._begin = Beginning(recorder, self.group)
        self._provenance: dict[str, Any] = {}

    def step(self, batch: Any, sample_ids: Any) -> StepResult | None:
        """Run a whole step.

        Args:
            batch: The batch.
            sample_ids: Identifiers of the samples.

        Returns:
            The result; None where this step has to be run by a session, and nothing was done yet.
        """
        try:
            begun = self._begin(batch, sample_ids)
        except Exception:  # noqa: BLE001 - the session that runs the step now will say it
            return None
        return None if begun is None else self._run(begun, batch)

    # -- the step ----------------------------------------------------------------------------------

    def _run(self, begun: Begun, batch: Any) -> StepResult:
        """Run the units in the order of the plan, and each gate as soon as it can be asked."""
        recorder = self._recorder
        step: Any = recorder.step_object
        model, optimizer = recorder.model, recorder.optimizers[0]
        step.step_index = begun.index
        optimizer.zero_grad(set_to_none=True)
        stage: Stage | None = "forward"
        error: Exception | None = None
        try:
            while True:
                begun.outputs = self._within(step, lambda: step.forward(model, batch))
                self._look_at_outputs(begun)
                stage = "loss"
                result = self._within(step, lambda: step.loss(begun.outputs, batch))
                begun.loss, begun.components = split_loss(result)
                if not self._loss_is_finite(begun):
                    break
                stage = "backward"
                step.backward(begun.loss, None)
                stage = "reduce"
                step.after_backward(model)
                if not self._gradients_are_finite(begun):
                    break
                stage = "unscale"
                step.unscale([optimizer], None)
                stage = "clip"
                self._clip(begun)
                if not self._norm_is_finite(begun):
                    break
                stage = "update"
                self._let_go(begun)
                proof = UpdateProof(optimizer, None)
                step.update(model, optimizer, None)
                begun.optimizer = proof.judge()
                stage = "after_update"
                if not self._update_is_finite(begun):
                    break
                stage = "logging"
                step.log(begun.loss.detach(), begun.outputs, model)
                stage = None
                break
        except Exception as raised:  # noqa: BLE001 - the session raises it again, unchanged
            error = raised
        if stage is None and begun.optimizer is not None:
            return self._end(begun, begun.optimizer)
        return self._leave(begun, stage, batch, error)

    def _within(self, step: Any, work: Callable[[], Any]) -> Any:
        """Run a part of the step in its autocast region."""
        if getattr(step, "autocast", None) is None:
            return work()
        with autocast_of(step, self._recorder.model):
            return work()

    def _clip(self, begun: Begun) -> None:
        step: Any = self._recorder.step_object
        if begun.total_norm is None:
            begun.grad_norm = step.clip(self._recorder.model, self._recorder.optimizers[0])
            return
        begun.grad_norm = begun.total_norm
        limit = step.max_grad_norm
        torch.nn.utils.clip_grads_with_norm_(
            self._recorder.model.parameters(), limit, begun.total_norm
        )

    def _let_go(self, begun: Begun) -> None:
        """Let go of what the update would have to copy."""
        if begun.held is not None:
            begun.held = begun.held.part(self._recorder.prepared.model.buffers)
        begun.updating = True

    # -- the gates; one that fails is asked again by the session -----------------------------------

    def _look_at_outputs(self, begun: Begun) -> None:
        outputs = begun.outputs
        try:
            if (
                type(outputs) is Tensor
                and outputs.dtype is torch.float32
                and (outputs.numel() > soft.ALWAYS or _sum_is_finite(outputs))
            ):
                return
            found = soft.scan("outputs", outputs, False)
            begun.soft_gates = [entry | {"micro_step": 0} for entry in found]
        except Exception:  # noqa: BLE001 - the tool may not break training; a soft gate only notes
            begun.soft_gates = None

    def _loss_is_finite(self, begun: Begun) -> bool:
        loss = begun.loss
        if type(loss) is not Tensor or loss.dim() or not loss.is_floating_point():
            return False
        begun.number = loss.item()
        for name, value in begun.components.items():
            number = scalar(value)
            if number is None or not math.isfinite(number):
                return False
            begun.parts[name] = number
        return math.isfinite(begun.number) and begun.soft_gates is not None

    def _gradients_are_finite(self, begun: Begun) -> bool:
        prepared, step = self._recorder.prepared.model, self._recorder.step_object
        if not prepared.has_same_parameters():
            return False
        found = [grad for p in prepared.parameters if (grad := p.grad) is not None]
        try:
            if clips_by_default(step):
                if not found or any(type(grad) is not Tensor for grad in found):
                    return False
                # the same call as clipping makes, so clipping can use it with the same bits
                begun.total_norm = torch.nn.utils.get_total_norm(found)
                begun.gate_norm = float(begun.total_norm)
                return math.isfinite(begun.gate_norm)
            begun.gate_norm = gradient_norm(found)
        except Exception:  # noqa: BLE001 - the session asks again and says it
            begun.total_norm = None
            return False
        return begun.gate_norm is not None

    def _norm_is_finite(self, begun: Begun) -> bool:
        norm = begun.grad_norm
        if norm is None:
            begun.norm = begun.gate_norm
            return True
        begun.norm = begun.gate_norm if norm is begun.total_norm else scalar(norm)
        return begun.norm is not None and math.isfinite(begun.norm)

    def _update_is_finite(self, begun: Begun) -> bool:
        recorder = self._recorder
        scan = recorder.scan
        try:
            (begun.rates,) = settings.learning_rates(recorder.optimizers)
            if not scan.note_calm(begun.norm, begun.number, begun.rates):
                return False
            prepared = recorder.prepared.model
            buffers = prepared.buffers_now()
            if scan.is_small:
                tensors: list[Tensor] = [*prepared.parameters]
                tensors += optimizer_state_values(recorder.optimizers)
                return scan.all_finite(tensors) and _buffers_are_finite(buffers)
            share = scan.share(recorder.model, recorder.optimizers)
            begun.spoiled = not (_buffers_are_finite(buffers) and all_finite(share))
            return not begun.spoiled
        except Exception:  # noqa: BLE001 - the session asks again and says it
            return False

    # -- the end -----------------------------------------------------------------------------------

    def _end(self, begun: Begun, optimizer: OptimizerRecord) -> StepResult:
        recorder = self._recorder
        recorder.step_index = begun.index + 1
        recorder.order.take_calm(begun.grad_norm is not None)
        if recorder.provenance != self._provenance:
            self._provenance = {**recorder.provenance}
        self.group.add(
            CalmRecord(
                begun.index, begun.time, begun.batch, begun.looked, begun.soft_gates or [],
                begun.rng, begun.number, begun.parts, begun.norm, begun.rates,
                recorder.model.training, settings.precision(recorder.step_object, None),
                self._provenance, begun.sample_ids, optimizer,
            )
        )  # fmt: skip
        if recorder.ring.every:
            recorder.guard("evidence", lambda: self._keep_in_ring(begun))
        watch = recorder.checkpoints
        if watch is not None:
            in_full = bool(recorder.scan.is_small)
            recorder.guard("checkpoint states", lambda: watch.clean(begun.index, in_full))
        return StepResult(
            begun.number, begun.norm, optimizer.updated == "yes", "none", None, begun.index,
            loss_components=begun.parts, optimizers=(optimizer,),
        )  # fmt: skip

    def _keep_in_ring(self, begun: Begun) -> None:
        bits = None if begun.loss is None else loss_bits(begun.loss.detach())
        self._recorder.ring.add(begun.index, self._snapshot(begun), bits, begun.sums)

    def _leave(
        self, begun: Begun, stage: Stage | None, batch: Any, error: Exception | None
    ) -> StepResult:
        """Go on as any other step does, from behind a stage whose gate is not known to be clean."""
        recorder = self._recorder
        self.group.write()
        session = Session(recorder, [batch], begun.sample_ids, kept=self._snapshot(begun))
        session.started, session.sums = begun.time, begun.sums
        recorder.running = session
        runner = RecordingRunner(recorder, session)
        runner.begin([batch], begun.index, clear_gradients=False)
        unit = runner.stand_behind(stage or "logging")
        values = runner.values
        if stage != "forward" or error is None:
            values.outputs.append(begun.outputs)
        if begun.loss is not None:
            values.losses.append(begun.loss)
            values.components.append(begun.components)
        values.gate_norm, values.grad_norm = begun.gate_norm, begun.grad_norm
        if begun.optimizer is not None:
            values.optimizer_records.append(begun.optimizer)
        session.soft_gates += begun.soft_gates or []
        outcome = (
            runner.gate(unit, begun.spoiled) if error is None else Outcome(unit, "bad", (), error)
        )
        return recorder.go_on(session, runner, outcome)

    def _snapshot(self, begun: Begun) -> StepSnapshot:
        recorder = self._recorder
        prepared = recorder.prepared.model
        model = None
        if not begun.updating and begun.held is not None:
            model = ModelSnapshot.of(prepared, begun.held)
        snapshot = StepSnapshot.of(
            (recorder.model, model), recorder.optimizers, begun.groups, [begun.batch],
            begun.index, begun.rng, begun.generators, begun.attributes,
        )  # fmt: skip
        if begun.updating and begun.held is not None:
            snapshot.buffers = ModelSnapshot.of_buffers(prepared, begun.held)
        snapshot.before_unit("main", 0)
        return snapshot


def _buffers_are_finite(buffers: list[Tensor]) -> bool:
    """Whether all are finite; read only, since a snapshot of them is held."""
    if any(t.is_complex() for t in buffers):
        return all_finite(buffers)
    floats = [t for t in buffers if t.is_floating_point()]
    return not floats or gradient_norm(floats) is not None or all_finite(floats)


def _sum_is_finite(t: Tensor) -> bool:
    """Whether the elements add up to a finite number, which proves all of them finite."""
    return math.isfinite(t.detach().sum().item())
