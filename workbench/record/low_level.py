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

    from workbench.record.quiet_block import QuietBlock
    from workbench.record.ranks.codes import Point
    from workbench.record.recorder import Recorder
    from workbench.record.session import Session
    from workbench.record.update_size import Sample


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
        self._quiet: QuietBlock | None = None
        self._running: tuple[Session, RecordingRunner] | None = None
        self.result: StepResult | None = None

    def __enter__(self) -> LowLevelStep:
        recorder = self._recorder
        if self._capture is None:
            self._quiet = recorder.quiet.block(self._batches, self._sample_ids)
        if self._quiet is None:
            session = recorder.begin(self._batches, self._sample_ids, self._capture, low_level=True)
            runner = RecordingRunner(recorder, session)
            self._running = session, runner
            runner.begin(self._batches or [None], session.step_index, clear_gradients=False)
            session.before_unit(Unit("input"))
            recorder.guard("replay check", lambda: tell_no_replay(recorder, session))
            recorder.check_input(session, runner, self._batches)
        watch = recorder.quiet.autocast
        recorder.guard("autocast watch", lambda: watch.begin(self._told_autocast))
        return self

    def micro_batch(self, i: int, batch: Any = None) -> None:
        """Say that the next micro-batch begins.

        Args:
            i: Its number, from 0.
            batch: The batch, unless it was given to ``recorder.step`` already.
        """
        if self._quiet is not None and self._quietly(lambda q: q.micro_batch(i, batch)):
            if batch is not None and i >= len(self._batches):
                self._batches.append(batch)
            self._micro_step, self._stage = i, "forward"
            return
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
        if self._quiet is not None and self._quietly(lambda q: q.loss(loss, components)):
            self._stage = "backward"
            return True
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
        if self._quiet is not None and self._quietly(lambda q: q.gradients()):
            self._gradients_seen = True
            return self._clip(max_norm)
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
        return False if self._withheld() else self._clip(max_norm)

    def _clip(self, max_norm: float | None) -> bool:
        if max_norm is not None:
            self._stage = "clip"
            parameters = _parameters(self._recorder.optimizers)
            norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
            return self.clipped(norm, max_norm)
        self._stage = "update"
        return self.may_update

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
        if self._quiet is not None and self._quietly(lambda q: q.clipped(norm, max_norm)):
            self._stage = "update"
            return True
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
        if not self.may_update:
            return
        with self.watch_update():
            arguments = () if closure is None else (closure,)
            scaler = self._recorder.scaler
            for optimizer in self._recorder.optimizers:
                if scaler is None:
                    optimizer.step(*arguments)
                else:
                    scaler.step(optimizer, *arguments)
            if scaler is not None:
                scaler.update()

    @contextmanager
    def watch_update(self) -> Iterator[None]:
        """Prove and gate an update that the block makes itself, optimizers and scaler.

        Raises:
            NonFiniteError: Parameters, state, scale or buffers became non-finite and the policy
                says ``raise``.
            UsageError: The step was updated already.
        """
        if self._updated:
            raise UsageError(
                "update() was called twice in one recorded step ('with recorder.step(...)'), so "
                "the ledger could not say which one counts. Open one step per update."
            )
        sample = self._before_update()
        recorder = self._recorder
        proofs = [UpdateProof(optimizer, recorder.scaler) for optimizer in recorder.optimizers]
        yield
        self._after_update(proofs, sample)

    def _before_update(self) -> Sample | None:
        if self._quiet is not None and self._quietly(lambda q: q.before_update()):
            self._stage = "update"
            return None
        runner, session = self._runner, self._session
        self._conclude("update")
        session.ungated_update = not runner.values.losses or not self._gradients_seen
        self._stage = "update"
        session.before_update(runner.will_skip, jumped=self._recorder.jumped(runner))
        return runner.sample_before_update()

    def _after_update(self, proofs: Sequence[UpdateProof], sample: Sample | None) -> None:
        records = [proof.judge() for proof in proofs]
        self._updated = True
        if self._quiet is not None:
            self._stage = "logging"
            if not self._quietly(lambda q: q.after_update(records)):
                self._take(self._gated("after_update"))
            return
        runner = self._runner
        runner.note_update(sample)
        runner.values.optimizer_records += records
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
        if self._quiet is not None:
            self._quiet.logging(everything)
            return
        found = self._recorder.guard("logging gate", lambda: soft.scan_values(everything))
        self._session.soft_gates += found or []
        self._session.logged_loss = scalar(everything.get("loss"))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._recorder.guard("autocast watch", self._recorder.quiet.autocast.end)
        if self._quiet is not None:
            if error is not None and not isinstance(error, Exception):
                return
            self.result = self._quiet.end() if error is None else None
            if self.result is not None:
                return
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
        return self._quiet is not None or not self._withheld()

    def autocast_is(self, dtype: str) -> None:
        """Say which autocast region forward runs in, where the model's own call cannot show it.

        Args:
            dtype: Its dtype, or ``off``.
        """
        self._recorder.quiet.autocast.end()
        self._told_autocast(dtype)

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

    def _told_autocast(self, dtype: str) -> None:
        if self._quiet is not None:
            self._quiet.autocast_is(dtype)
        else:
            self._session.autocast = dtype

    # -- quietly, as long as nothing is unusual ----------------------------------------------------

    @property
    def _session(self) -> Session:
        return self._awake()[0]

    @property
    def _runner(self) -> RecordingRunner:
        return self._awake()[1]

    def _awake(self) -> tuple[Session, RecordingRunner]:
        """Session and runner of the step; made now where it was quiet so far."""
        if self._running is None:
            quiet, self._quiet = self._quiet, None
            if quiet is None:
                raise UsageError(
                    "A recorded step was used outside of its block ('with recorder.step(...) as "
                    "s:'), so nothing was kept of it. Call its methods within the block."
                )
            self._running = quiet.wake(self._batches)
        return self._running

    def _quietly(self, work: Callable[[QuietBlock], bool]) -> bool:
        """Do quietly what can be done so; whether all was done, else the step is awake."""
        quiet = self._quiet
        if quiet is not None and self._recorder.guard("quiet step", lambda: work(quiet)):
            return True
        self._awake()
        return False


def _parameters(optimizers: Sequence[Optimizer]) -> list[Tensor]:
    return [p for opt in optimizers for group in opt.param_groups for p in group["params"]]
