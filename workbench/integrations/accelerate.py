"""A plain loop with Hugging Face Accelerate: ``accelerate.attach(accelerator, model, optimizer)``.

The loop stays as it is; what it calls tells the recorder where it is: the model's own call (a
micro-batch begins), ``accelerator.backward`` (the loss), ``accelerator.clip_grad_norm_``
(gradients after unscaling, before clipping), the prepared optimizer's ``step`` (the update),
``accelerator.log``, ``save_state`` and ``load_state``. A forward without gradients belongs to no
step.

What cannot be seen through this library: a field of the batch that the model is not called with
(labels, where the loss is computed outside of the model) unless ``attachment.batch(batch)`` tells
it; which call of a model that is called several times before one backward is which (the first is
the micro-batch); loss components; exceptions outside of ``accelerator.accumulate``, unless the
attachment is used as a context manager; with DeepSpeed or Megatron, gradients before clipping.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from torch import nn

from workbench.errors import CannotRunError, UsageError
from workbench.integrations.accelerate_loop import AccelerateLoop, computes_its_loss
from workbench.integrations.describe import describe_step
from workbench.integrations.drilling import attributes, drill_loop, preserved
from workbench.integrations.loop import FollowedLoop, inner_optimizer, tell
from workbench.integrations.resuming import refuse_unless_committed
from workbench.integrations.transformers_step import TransformersStep
from workbench.numerics import jsonio
from workbench.record import Policy, Recorder
from workbench.record.drill import Drill

GATED: Final = (
    "loss, gradients after unscaling and before clipping, clip norm, parameters and state after the"
    " update"
)


class Attachment(AccelerateLoop):
    """The recorder of a loop with accelerate.

    Args:
        accelerator: The ``accelerate.Accelerator``.
        model: The prepared model.
        optimizer: The prepared optimizer, or several.
        directory: Where bundles and the ledger go.
        policy: The recorder's policy.
        run_id: Name of the run.
        step: Your own ``TrainingStep``; None builds one for a model that transformers brings and
            that computes its own loss.
        schedulers: The learning-rate schedulers.
        checkpoints: The directory that ``save_state`` saves to, to keep track of what is there.

    Attributes:
        not_gated: What is not seen, in sentences.
        replayable: Whether a bundle can be replayed without code of yours, and why not.
    """

    def __init__(
        self,
        accelerator: Any,
        model: nn.Module,
        optimizer: Any,
        directory: str | Path = "incidents",
        policy: Policy | None = None,
        run_id: str | None = None,
        step: Any = None,
        schedulers: Sequence[Any] = (),
        checkpoints: str | Path | None = None,
    ) -> None:
        several = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
        super().__init__(accelerator, model, several, self._make_recorder)
        self._check()
        self._directory = directory
        self._policy = policy
        self._run_id = run_id
        self._own_step = step
        self._schedulers = [getattr(one, "scheduler", one) for one in schedulers]
        self._checkpoints = None if checkpoints is None else Path(checkpoints)
        self.replayable = ""
        self.not_gated = self._not_gated()
        self._attach()

    def _check(self) -> None:
        prepared = all(hasattr(one, "step_was_skipped") for one in self._optimizers)
        if not hasattr(self._accelerator, "clip_grad_norm_") or not prepared:
            raise UsageError(
                f"attach() was given a {type(self._accelerator).__name__!r} and the optimizer "
                f"{type(self._optimizers[0]).__name__!r}, but it needs an Accelerator and the "
                "optimizer that accelerator.prepare() gave, since that is the one the loop steps. "
                "Attach after prepare(), or use workbench.Recorder in your own loop."
            )

    @property
    def recorder(self) -> Recorder:
        """The recorder; there is one once the model was called."""
        if not self.loop.started:
            raise CannotRunError(
                "The loop has not called the model yet, so there is no recorder. Train first."
            )
        return self.loop.recorder

    def detach(self) -> None:
        """Give everything its own methods back."""
        self.close()
        self._wrapped.restore()

    def __enter__(self) -> Attachment:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, trace
        if error is not None:
            self.loop.fail(error)
        self.close()

    def _attach(self) -> None:
        self._follow()
        if self._checkpoints is not None:
            self._wrapped.wrap(self._accelerator, "save_state", self._around_save)
            self._wrapped.wrap(self._accelerator, "load_state", self._around_load)
        tell(self.description())

    def description(self) -> list[str]:
        """What is gated and what is not, in lines."""
        found = [f"workbench: recording to {str(self._directory)!r}. Gated: {GATED}."]
        return found + [f"workbench: not seen: {one}" for one in self.not_gated]

    def _not_gated(self) -> list[str]:
        found = [
            "exceptions outside of both 'with accelerator.accumulate(model)' and 'with attach'"
        ]
        if self._own_step is not None or not computes_its_loss(self._model):
            found.append(
                "fields of the batch that the model is not called with; tell them with "
                "attachment.batch(batch)"
            )
        if self._own_step is None and not computes_its_loss(self._model):
            found.append(
                "how the loss is computed, so a replay needs your own TrainingStep: attach(step=) "
                "or --step"
            )
        if str(self._accelerator.distributed_type).rpartition(".")[2] in ("DEEPSPEED", "MEGATRON"):
            found.append("gradients that DeepSpeed or Megatron partitions and clips itself")
        return found

    # -- checkpoints ------------------------------------------------------------------------------

    def _around_save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def save_state(*args: Any, **kwargs: Any) -> Any:
            self.loop.end()
            path = original(*args, **kwargs)
            ours = self._checkpoints is not None and Path(path).parent.samefile(self._checkpoints)
            if ours and self.loop.started:
                self.recorder.checkpoint_saved(path)
            return path

        return save_state

    def _around_load(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def load_state(input_dir: Any = None, *args: Any, **kwargs: Any) -> Any:
            if input_dir is not None:
                refuse_unless_committed(input_dir)
            return original(input_dir, *args, **kwargs)

        return load_state

    # -- the recorder -----------------------------------------------------------------------------

    def _make_recorder(self) -> Recorder:
        recorder = self._recorder(self._directory, self._policy, self._run_id, self._checkpoints)
        if recorder.step_object is None and computes_its_loss(self._model):
            tell([f"workbench: a replay needs your own step (--step): {self.replayable}"])
        return recorder

    def _recorder(
        self,
        directory: str | Path,
        policy: Policy | None,
        run_id: str | None = None,
        checkpoints: Path | None = None,
    ) -> Recorder:
        optimizers = [inner_optimizer(one) for one in self._optimizers]
        return Recorder(
            self._own_step or self._described_step(),
            self._model,
            optimizers,
            self._accelerator.scaler,
            directory,
            run_id,
            policy,
            schedulers=self._schedulers,
            checkpoints=checkpoints,
        )

    def _described_step(self) -> TransformersStep | None:
        if len(self._optimizers) > 1 or not computes_its_loss(self._model):
            self.replayable = "how the loop computes its loss is not known"
            return None
        described, self.replayable = describe_step(
            self._model, self._optimizers[0], self._accelerator
        )
        if described is None:
            return None
        divides = self._accelerator.gradient_accumulation_steps
        return TransformersStep(jsonio.dumps(described | {"divides": divides}))

    # -- the drill --------------------------------------------------------------------------------

    def drill(self, train: Callable[[int], Any], steps: int = 3) -> Drill:
        """Run your loop for a few steps with each fault in turn, and tell what catches it.

        Afterwards model, optimizers, schedulers, scaler, random numbers and accelerator are as
        before; what your function reads data from is not. Parameters are held twice meanwhile.

        Args:
            train: Runs the step of a number, from 0, with all its micro-batches and its update.
            steps: Steps of each run, at least 3.

        Raises:
            UsageError: Fewer than three steps.
        """
        accelerator, before = self._accelerator, self.loop
        before.end()
        optimizers = [inner_optimizer(one) for one in self._optimizers]

        def run(loop: FollowedLoop) -> None:
            undo = [attributes(one) for one in (accelerator.gradient_state, *self._optimizers)]
            step, self.loop = accelerator.step, loop
            self._begin_anew()
            try:
                with preserved(self._model, optimizers, self._schedulers, accelerator.scaler):
                    for k in range(steps):
                        train(k)
            finally:
                self.loop, accelerator.step = before, step
                self._begin_anew()
                for one in undo:
                    one()

        return drill_loop(run, self._recorder, steps)


def attach(
    accelerator: Any,
    model: nn.Module,
    optimizer: Any,
    directory: str | Path = "incidents",
    policy: Policy | None = None,
    run_id: str | None = None,
    step: Any = None,
    schedulers: Sequence[Any] = (),
    checkpoints: str | Path | None = None,
) -> Attachment:
    """Record a loop with accelerate; call it after ``accelerator.prepare``.

    Args:
        accelerator: The ``accelerate.Accelerator``.
        model: The prepared model.
        optimizer: The prepared optimizer, or several.
        directory: Where bundles and the ledger go.
        policy: The recorder's policy.
        run_id: Name of the run.
        step: Your own ``TrainingStep``; None builds one for a model that transformers brings and
            that computes its own loss.
        schedulers: The learning-rate schedulers.
        checkpoints: The directory that ``save_state`` saves to; ``load_state`` of another than a
            committed one is refused.

    Raises:
        UsageError: No Accelerator, or an optimizer that it did not prepare.
    """
    return Attachment(
        accelerator, model, optimizer, directory, policy, run_id, step, schedulers, checkpoints
    )
