"""The low-level form: the user keeps the loop and tells the recorder where it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from workbench.errors import UsageError
from workbench.record import soft
from workbench.record.acting import act, failed
from workbench.record.order_lint import tell_no_replay
from workbench.record.result import StepResult
from workbench.record.running import RecordingRunner
from workbench.step.gates import found_inf, scale_value, scaler_enabled
from workbench.step.proof import UpdateProof
from workbench.step.runner import Outcome
from workbench.step.stages import Stage, Unit
from workbench.step.values import scalar

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from workbench.record.ranks.codes import Point
    from workbench.record.recorder import Recorder


class LowLevelStep:
    """One step of the user's own loop, as a context manager.

    Args:
        recorder: The recorder.
        batches: The batches, as far as they are known.
        sample_ids: Identifiers of the samples.
        capture: Reason to make a bundle of this step in any case.

    Attributes:
        result: The step's result, once the block has been left.
    """

    def __init__(
        self, recorder: Recorder, batches: Sequence[Any], sample_ids: Any, capture: str | None
    ) -> None:
        self._recorder = recorder
        self._batches = list(batches)
        self._sample_ids = sample_ids
        self._capture = capture
        self._stage: Stage = "forward"
        self._micro_step = 0
        self._updated = False
        self._gradients_seen = False
        self._unwatch: Callable[[], None] = lambda: None
        self.result: StepResult | None = None

    def __enter__(self) -> LowLevelStep:
        recorder = self._recorder
        self._session = recorder.begin(
            self._batches, self._sample_ids, self._capture, low_level=True
        )
        self._runner = RecordingRunner(recorder, self._session)
        self._runner.begin(self._batches or [None], self._session.step_index, clear_gradients=False)
        self._session.before_unit(Unit("input"))
        recorder.guard("replay check", lambda: tell_no_replay(recorder, self._session))
        recorder.check_input(self._session, self._runner, self._batches)
        self._unwatch = recorder.guard("autocast watch", self._watch_autocast) or self._unwatch
        return self

    def micro_batch(self, i: int, batch: Any = None) -> None:
        """Say that the next micro-batch begins.

        Args:
            i: Its number, from 0.
            batch: The batch, unless it was given to ``recorder.step`` already.
        """
        if i > self._micro_step:
            self._recorder.guard("micro-step", self._runner.note_micro_step)
        self._micro_step = i
        self._stage = "forward"
        snapshot = self._session.snapshot
        if snapshot is None:
            return
        if batch is not None and i >= len(snapshot.micro_batches):
            self._recorder.guard("batch", lambda: snapshot.add_micro_batch(batch))
            self._batches.append(batch)
            self._recorder.guard("batch", lambda: self._session.look_at_batches(self._batches))
            self._recorder.check_input(self._session, self._runner, self._batches, i)
        self._recorder.guard("random state", lambda: snapshot.before_unit("main", i))

    def loss(self, loss: Tensor, components: Mapping[str, Tensor] | None = None) -> bool:
        """Pass the loss of a micro-batch through its gate, before backward.

        Args:
            loss: The scalar that backward starts from, before the loss scale.
            components: Parts of it by name.

        Returns:
            Whether the step may go on to an update.

        Raises:
            NonFiniteError: It is non-finite and the policy says ``raise``.
        """
        values = self._runner.values
        values.losses.append(loss)
        values.components.append(dict(components or {}))
        self._stage = "backward"
        self._take(self._gated("loss"))
        return not self._withheld()

    def gradients(self, max_norm: float | None = None) -> bool:
        """Unscale, gate every gradient element-wise, decide for all ranks, then clip.

        Args:
            max_norm: Largest total gradient norm; None does not clip.

        Returns:
            Whether to call ``update()``. When False the step is finished already: the update is
            withheld, the scale updated, gradients are cleared.

        Raises:
            NonFiniteError: A gradient is non-finite, no scaler skips it, and the policy says
                ``raise``.
        """
        runner = self._runner
        if runner.values.withheld:
            runner.clear_gradients()
            return False
        self._gradients_seen = True
        if self._micro_step:
            self._recorder.guard("micro-step", runner.note_micro_step)
        self._stage = "unscale"
        scaler = runner.scaler
        if scaler_enabled(scaler):
            for optimizer in runner.optimizers:
                if found_inf(scaler, optimizer) is None:  # the user's loop may have done it
                    scaler.unscale_(optimizer)
            runner.values.unscaled = True
        gate: Stage = "unscale" if scaler_enabled(scaler) else "reduce"
        outcome = self._gated(gate)
        runner.note_skip(outcome)
        self._take(outcome, at_gate=True)
        if self._withheld():
            return False
        if max_norm is not None:
            self._stage = "clip"
            parameters = _parameters(runner.optimizers)
            norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
            return self.clipped(norm, max_norm)
        self._stage = "update"
        return not self._withheld()

    def clipped(self, norm: Tensor | float | None, max_norm: float | None = None) -> bool:
        """Say that gradients were clipped, after ``gradients()``, and pass the norm's gate.

        Args:
            norm: The total norm before clipping, None where it is not known.
            max_norm: The threshold.

        Returns:
            Whether to go on to the update.

        Raises:
            NonFiniteError: The norm is non-finite over finite gradients and the policy says
                ``raise``.
        """
        self._stage = "clip"
        self._session.max_grad_norm = None if max_norm is None else float(max_norm)
        self._runner.values.grad_norm = norm
        self._take(self._gated("clip"))
        self._stage = "update"
        return not self._withheld()

    def update(self, closure: Callable[[], Any] | None = None) -> None:
        """Step the optimizers and the scaler, prove the update, pass the after-update gate.

        Args:
            closure: Handed to optimizers that evaluate the loss themselves (LBFGS).

        Raises:
            NonFiniteError: Parameters, state, scale or buffers became non-finite and the policy
                says ``raise``.
        """
        runner = self._runner
        if runner.values.withheld:
            return
        with self.watch_update():
            arguments = () if closure is None else (closure,)
            for optimizer in runner.optimizers:
                if runner.scaler is None:
                    optimizer.step(*arguments)
                else:
                    runner.scaler.step(optimizer, *arguments)
            if runner.scaler is not None:
                runner.scaler.update()

    @contextmanager
    def watch_update(self) -> Iterator[None]:
        """Prove and gate an update that the block makes itself, optimizers and scaler.

        Raises:
            NonFiniteError: Parameters, state, scale or buffers became non-finite and the policy
                says ``raise``.
            UsageError: The step was updated already.
        """
        runner = self._runner
        if self._updated:
            raise UsageError(
                "update() was called twice in one recorded step ('with recorder.step(...)'), so "
                "the ledger could not say which one counts. Open one step per update."
            )
        self._conclude("update")
        self._session.ungated_update = not runner.values.losses or not self._gradients_seen
        self._stage = "update"
        self._session.before_update(runner.will_skip, jumped=self._session.recorder.jumped(runner))
        proofs = [UpdateProof(optimizer, runner.scaler) for optimizer in runner.optimizers]
        sample = runner.sample_before_update()
        yield
        runner.note_update(sample)
        self._updated = True
        runner.values.optimizer_records += [proof.judge() for proof in proofs]
        runner.values.scale_after = scale_value(runner.scaler)
        self._session.outcomes.append(Outcome(Unit("update", "main", self._micro_step)))
        self._stage = "logging"
        self._take(self._gated("after_update"))

    def logging(self, values: Mapping[str, Any] | None = None, **named: Any) -> None:
        """Note logged values; non-finite ones go to the ledger and trip nothing.

        Args:
            values: Numbers or tensors by name.
            **named: More of them.
        """
        self._stage = "logging"
        everything = {**(values or {}), **named}
        found = self._recorder.guard("logging gate", lambda: soft.scan_values(everything))
        self._session.soft_gates += found or []
        self._session.logged_loss = scalar(everything.get("loss"))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._recorder.guard("autocast watch", self._unwatch)
        runner, session = self._runner, self._session
        if error is None:
            if not self._updated and not runner.values.withheld:
                session.notes.append("the block was left without update(): the update was withheld")
                self._conclude("left")
                runner.withhold_update()
            self.result = self._recorder.finish(session, runner)
        elif session.finished is not None:  # raised by a gate, written already
            self.result = session.finished
        elif isinstance(error, Exception):  # KeyboardInterrupt and the like are no incident
            unit = Unit(self._stage, "main", self._micro_step)
            session.outcomes.append(Outcome(unit, "bad", (), error))
            raised = failed(self._recorder, session, runner, unit, error)
            self.result = session.finished
            if raised is not error:  # another rank is behind it
                raise raised from error

    @property
    def may_update(self) -> bool:
        """Whether nothing so far withholds the update."""
        return not self._withheld()

    def _conclude(self, point: Point) -> None:
        """Decide with the other ranks where gradients never came to their gate."""
        recorder, session, runner = self._recorder, self._session, self._runner
        if recorder.ranks is None or session.decided_at:
            return
        unit = Unit(self._stage, "main", self._micro_step)
        try:
            finding = recorder.ranks.conclude(session, runner, point)
        except Exception as error:  # noqa: BLE001 - another rank's, or the policy's; raised again
            raise failed(recorder, session, runner, unit, error) from error.__cause__
        if finding.tripped:
            act(recorder, session, runner, finding)

    # -- inside -----------------------------------------------------------------------------------

    def _withheld(self) -> bool:
        return self._runner.values.withheld

    def _gated(self, stage: Stage) -> Outcome:
        return self._runner._gate(Unit(stage, "main", self._micro_step))

    def _take(self, outcome: Outcome, at_gate: bool = False) -> None:
        self._recorder.after_unit(self._session, self._runner, outcome, at_gate)

    def _watch_autocast(self) -> Callable[[], None]:
        """Read the autocast region that forward runs in: the block does not say it otherwise."""
        session = self._session

        def look(module: torch.nn.Module, inputs: Any) -> None:
            del inputs
            device = next((p.device.type for p in module.parameters()), "cpu")
            enabled = torch.is_autocast_enabled(device)
            dtype = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
            session.autocast = dtype if enabled else "off"

        return self._recorder.model.register_forward_pre_hook(look).remove


def _parameters(optimizers: Sequence[Optimizer]) -> list[Tensor]:
    return [p for opt in optimizers for group in opt.param_groups for p in group["params"]]
