"""Hugging Face Trainer: ``workbench.integrations.hf.attach(trainer)``.

A callback alone sees neither the batch nor the raw loss, and ``on_pre_optimizer_step`` comes after
clipping (transformers issue 36012); so the trainer's own methods are wrapped: ``get_batch_samples``
(a step begins), ``compute_loss`` (the batch as the model sees it), the accelerator's ``backward``
(the loss) and ``clip_grad_norm_`` (gradients after unscaling, before clipping), the optimizer's
``step`` (the update) and ``log``.

What cannot be seen through this library, and is recorded as missing: loss components (the model
sums them itself), the state of data loader workers, and, with DeepSpeed or a sharded optimizer,
gradients before they are partitioned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from workbench.errors import CannotRunError, UsageError
from workbench.integrations.accelerate_loop import precision, without_unscaling
from workbench.integrations.drilling import drill_loop
from workbench.integrations.hf_trainer import describe_trainer, short_training
from workbench.integrations.loop import FollowedLoop, Wrapped, inner_optimizer, tell, unless
from workbench.integrations.resuming import latest_committed, refuse_unless_committed
from workbench.integrations.transformers_step import TransformersStep
from workbench.numerics import jsonio
from workbench.record import Policy, Recorder
from workbench.record.drill import Drill

GATED = "loss, gradients after unscaling and before clipping, clip norm, parameters and state after"


class Attachment:
    """The recorder of a trainer.

    Args:
        trainer: The ``transformers.Trainer``.
        directory: Where bundles and the ledger go.
        policy: The recorder's policy.
        run_id: Name of the run.
        step: Your own ``TrainingStep``; None builds one from the model's configuration.
        checkpoints: Whether checkpoints in the trainer's ``output_dir`` are kept track of, and
            resuming refuses those that are not committed.

    Attributes:
        not_gated: What this library does not let the recorder see, in sentences.
        replayable: Whether a bundle can be replayed without code of yours, and why not.
    """

    def __init__(
        self,
        trainer: Any,
        directory: str | Path = "incidents",
        policy: Policy | None = None,
        run_id: str | None = None,
        step: Any = None,
        checkpoints: bool = True,
    ) -> None:
        if not hasattr(trainer, "accelerator") or not hasattr(trainer, "get_batch_samples"):
            raise UsageError(
                f"attach() was given a {type(trainer).__name__!r}, which is no transformers "
                "Trainer of a version this integration knows (it has no 'get_batch_samples'). "
                "Pass the Trainer, or use workbench.Recorder in your own loop."
            )
        self._trainer = trainer
        self._directory = directory
        self._policy = policy
        self._run_id = run_id
        self._own_step = step
        self._checkpoints = Path(trainer.args.output_dir) if checkpoints else None
        self._wrapped = Wrapped()
        self._optimizer: Any = None
        self.replayable = ""
        self.loop = FollowedLoop(self._make_recorder)
        self.not_gated = self._not_gated()
        self._attach()

    @property
    def recorder(self) -> Recorder:
        """The recorder; there is one once training has begun."""
        if not self.loop.started:
            raise CannotRunError(
                "The trainer has not begun to train, so there is no recorder yet. Call "
                "trainer.train() first."
            )
        return self.loop.recorder

    def detach(self) -> None:
        """Give the trainer its own methods back."""
        self._wrapped.restore()
        self._trainer.remove_callback(self._callback)

    # -- wrapping ---------------------------------------------------------------------------------

    def _attach(self) -> None:
        trainer, accelerator = self._trainer, self._trainer.accelerator
        wrap = self._wrapped.wrap
        wrap(trainer, "get_batch_samples", self._around_batch_samples)
        wrap(trainer, "training_step", self._around_training_step)
        wrap(trainer, "compute_loss", self._around_compute_loss)
        wrap(accelerator, "backward", self._around_backward)
        wrap(accelerator, "unscale_gradients", unless(lambda: self.loop.withheld))
        wrap(accelerator, "clip_grad_norm_", self._around_clip)
        wrap(trainer, "train", self._around_train)
        wrap(trainer, "log", self._around_log)
        wrap(trainer, "evaluate", self._around_evaluate)
        self._callback = _callback(self)
        trainer.add_callback(self._callback)
        tell(self.description())

    def description(self) -> list[str]:
        """What is gated and what is not, in lines."""
        lines = [f"workbench: recording to {str(self._directory)!r}. Gated: {GATED} the update."]
        return lines + [f"workbench: not seen: {one}" for one in self.not_gated]

    def _not_gated(self) -> list[str]:
        args = self._trainer.args
        found = ["loss components, since the model sums them itself"]
        if getattr(args, "logging_nan_inf_filter", False):
            found.append(
                "NaN and Inf losses in the Trainer's own log, which leaves them out "
                "(logging_nan_inf_filter=True); the recorder does see them"
            )
        if getattr(args, "deepspeed", None):
            found.append("gradients under DeepSpeed, which partitions and clips them itself")
        return found

    def _around_batch_samples(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def get_batch_samples(*args: Any, **kwargs: Any) -> Any:
            self.loop.end()  # reading data belongs to no step
            found = original(*args, **kwargs)
            self._wrap_optimizer()
            self.loop.begin()
            return found

        return get_batch_samples

    def _around_training_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def training_step(*args: Any, **kwargs: Any) -> Any:
            with self.loop.failing():
                return original(*args, **kwargs)

        return training_step

    def _around_compute_loss(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compute_loss(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if model.training and isinstance(inputs, Mapping):
                accepts = getattr(self._trainer, "model_accepts_loss_kwargs", False)
                items = kwargs.get("num_items_in_batch") if accepts else None
                batch = {"inputs": dict(inputs), "num_items_in_batch": items}
                seen = self.loop.micro_batch(batch, precision(self._trainer.accelerator))
                if seen is not batch:  # a drill spoiled it
                    inputs = seen["inputs"]
                    if items is not None:
                        kwargs["num_items_in_batch"] = seen["num_items_in_batch"]
            return original(model, inputs, *args, **kwargs)

        return compute_loss

    def _around_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
            self.loop.loss(loss)
            return original(loss, *args, **kwargs)

        return backward

    def _around_clip(self, original: Callable[..., Any]) -> Callable[..., Any]:
        accelerator = self._trainer.accelerator

        def clip_grad_norm_(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
            with self.loop.failing():
                accelerator.unscale_gradients()
                go_on = self.loop.gradients()
                if not go_on:
                    return torch.tensor(float("nan"))
                norm = without_unscaling(
                    accelerator, lambda: original(parameters, max_norm, *args, **kwargs)
                )
                self.loop.clipped(norm, max_norm)
                return norm

        return clip_grad_norm_

    def _wrap_optimizer(self) -> None:
        optimizer = self._trainer.optimizer
        if optimizer is None or optimizer is self._optimizer:
            return
        self._optimizer = optimizer
        self._wrapped.wrap(optimizer, "step", self._around_update)

    def _around_update(self, original: Callable[..., Any]) -> Callable[..., Any]:
        optimizer = self._trainer.optimizer

        def step(*args: Any, **kwargs: Any) -> Any:
            with self.loop.failing():
                if not self.loop.gradients():
                    optimizer._is_overflow = True  # so that the scheduler is not stepped
                    return None
                optimizer._is_overflow = False  # without a scaler nobody else takes it back
                with self.loop.update():
                    return original(*args, **kwargs)

        return step

    def _around_log(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def log(logs: Any, *args: Any, **kwargs: Any) -> Any:
            with self.loop.failing():
                self.loop.logged(logs or {})
                return original(logs, *args, **kwargs)

        return log

    def _around_evaluate(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def evaluate(*args: Any, **kwargs: Any) -> Any:
            self.loop.end()  # it belongs to no step
            return original(*args, **kwargs)

        return evaluate

    def _around_train(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def train(resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
            if self.loop.finished:  # trained before: optimizer and scheduler are new ones
                self.loop = FollowedLoop(self._make_recorder)
            try:
                with self.loop.failing():
                    return original(self.resume_from(resume_from_checkpoint), *args, **kwargs)
            finally:
                self.loop.finish()

        return train

    # -- checkpoints ------------------------------------------------------------------------------

    def resume_from(self, wanted: Any) -> Any:
        """The checkpoint to resume from, where it may be.

        Args:
            wanted: As for ``Trainer.train``: True takes the newest committed one.

        Raises:
            CannotRunError: It is suspect or quarantined, or none is committed.
        """
        if not wanted or self._checkpoints is None:
            return wanted
        if wanted is True:
            return str(latest_committed(self._checkpoints))
        return str(refuse_unless_committed(wanted))

    def checkpoint_saved(self) -> None:
        """The trainer saved a checkpoint of the step it is at."""
        self.loop.end()
        if self._checkpoints is not None and self.loop.started:
            path = self._checkpoints / f"checkpoint-{self._trainer.state.global_step}"
            if path.is_dir():
                self.recorder.checkpoint_saved(path)

    # -- the recorder -----------------------------------------------------------------------------

    def _make_recorder(self) -> Recorder:
        recorder = self._recorder(self._directory, self._policy, self._run_id, self._checkpoints)
        if recorder.step_object is None:
            tell([f"workbench: a replay needs your own step (--step): {self.replayable}"])
        return recorder

    def _recorder(
        self,
        directory: str | Path,
        policy: Policy | None,
        run_id: str | None = None,
        checkpoints: Path | None = None,
    ) -> Recorder:
        trainer = self._trainer
        optimizer = inner_optimizer(trainer.optimizer)
        return Recorder(
            self._own_step or self._described_step(optimizer),
            trainer.model,
            optimizer,
            trainer.accelerator.scaler,
            directory,
            run_id,
            policy,
            schedulers=[trainer.lr_scheduler] if trainer.lr_scheduler is not None else [],
            first_step=trainer.state.global_step,
            checkpoints=checkpoints,
        )

    def _described_step(self, optimizer: Any) -> TransformersStep | None:
        described, self.replayable = describe_trainer(self._trainer, optimizer)
        return None if described is None else TransformersStep(jsonio.dumps(described))

    # -- the drill --------------------------------------------------------------------------------

    def drill(self, steps: int = 3) -> Drill:
        """Train a few steps with each fault in turn, and tell which boundary catches it.

        Nothing is saved, evaluated or reported meanwhile, and callbacks of yours are left out.
        Afterwards model, optimizer, scheduler, random numbers and the trainer are as before; an
        iterable dataset has been read from. Parameters are held twice meanwhile.

        Args:
            steps: Steps of each training, at least 3.

        Raises:
            UsageError: Fewer than three steps.
        """
        before = self.loop

        def run(loop: FollowedLoop) -> None:
            self.loop = loop
            try:
                with short_training(self._trainer, steps):
                    self._trainer.train()
            finally:
                self.loop = before

        return drill_loop(run, self._recorder, steps)


def attach(
    trainer: Any,
    directory: str | Path = "incidents",
    policy: Policy | None = None,
    run_id: str | None = None,
    step: Any = None,
    checkpoints: bool = True,
) -> Attachment:
    """Record the training of a ``transformers.Trainer``; call it before ``trainer.train()``.

    Args:
        trainer: The trainer.
        directory: Where bundles and the ledger go.
        policy: The recorder's policy.
        run_id: Name of the run.
        step: Your own ``TrainingStep``; None builds one from the model's configuration.
        checkpoints: Keep track of checkpoints in ``output_dir``; resume from committed ones only.

    Raises:
        UsageError: Not a trainer this integration knows.
    """
    return Attachment(trainer, directory, policy, run_id, step, checkpoints)


def _callback(attachment: Attachment) -> Any:
    from transformers import TrainerCallback

    class Follow(TrainerCallback):
        """Passes on what only callbacks are told: saved checkpoints."""

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            """A checkpoint was saved."""
            del args, state, control
            attachment.checkpoint_saved()

    return Follow()
