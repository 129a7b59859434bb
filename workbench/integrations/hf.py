"""Hugging Face Trainer: ``workbench.integrations.hf.attach(trainer)``.

A callback alone sees neither the batch nor the raw loss, and ``on_pre_optimizer_step`` comes after
clipping (transformers issue 36012); so the trainer's own methods are wrapped: ``get_batch_samples``
(a step begins), ``compute_loss`` (the batch as the model sees it), the accelerator's ``backward``
(the loss) and ``clip_grad_norm_`` (gradients after unscaling, before clipping), and the optimizer's
``step`` (the update).

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
from workbench.integrations.loop import FollowedLoop, Wrapped, tell
from workbench.integrations.transformers_step import TransformersStep, describe_optimizer
from workbench.numerics import jsonio
from workbench.record import Policy, Recorder

STEP = "workbench.integrations.transformers_step:TransformersStep"
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
        self._optimizer_wrapped = False
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
        wrap(accelerator, "clip_grad_norm_", self._around_clip)
        if self._checkpoints is not None:
            wrap(trainer, "train", self._around_train)
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
                "nothing is hidden from the recorder, but the Trainer's own log hides NaN and Inf "
                "losses (logging_nan_inf_filter=True); set it to False"
            )
        if getattr(args, "deepspeed", None):
            found.append("gradients under DeepSpeed, which partitions and clips them itself")
        return found

    def _around_batch_samples(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def get_batch_samples(*args: Any, **kwargs: Any) -> Any:
            found = original(*args, **kwargs)
            if self._trainer.model.training or not self.loop.started:
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
                self.loop.micro_batch({"inputs": dict(inputs), "num_items_in_batch": items})
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
                norm = _without_unscaling(
                    accelerator, lambda: original(parameters, max_norm, *args, **kwargs)
                )
                self.loop.clipped(norm, max_norm)
                return norm

        return clip_grad_norm_

    def _wrap_optimizer(self) -> None:
        optimizer = self._trainer.optimizer
        if self._optimizer_wrapped or optimizer is None:
            return
        self._optimizer_wrapped = True
        self._wrapped.wrap(optimizer, "step", self._around_update)

    def _around_update(self, original: Callable[..., Any]) -> Callable[..., Any]:
        optimizer = self._trainer.optimizer

        def step(*args: Any, **kwargs: Any) -> Any:
            with self.loop.failing():
                if not self.loop.gradients():
                    optimizer._is_overflow = True  # so that the scheduler is not stepped
                    return None
                with self.loop.update():
                    return original(*args, **kwargs)

        return step

    def _around_train(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def train(resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
            return original(self.resume_from(resume_from_checkpoint), *args, **kwargs)

        return train

    # -- checkpoints ------------------------------------------------------------------------------

    def resume_from(self, wanted: Any) -> Any:
        """The checkpoint to resume from, where it may be.

        Args:
            wanted: As for ``Trainer.train``: True takes the newest committed one.

        Raises:
            CannotRunError: It is suspect or quarantined, or none is committed.
        """
        from workbench.checkpoints import Registry

        if not wanted or self._checkpoints is None:
            return wanted
        registry = Registry(self._checkpoints)
        if wanted is not True:
            return str(registry.refuse_unless_committed(wanted))
        latest = registry.latest()
        if latest is None:
            raise CannotRunError(
                f"No checkpoint in {str(self._checkpoints)!r} is committed, so training was not "
                "resumed: 'workbench checkpoints list' says why for each."
            )
        return str(latest)

    def checkpoint_saved(self) -> None:
        """The trainer saved a checkpoint of the step it is at."""
        self.loop.end()
        if self._checkpoints is not None and self.loop.started:
            path = self._checkpoints / f"checkpoint-{self._trainer.state.global_step}"
            if path.is_dir():
                self.recorder.checkpoint_saved(path)

    # -- the recorder -----------------------------------------------------------------------------

    def _make_recorder(self) -> Recorder:
        trainer = self._trainer
        optimizer = _inner(trainer.optimizer)
        step = self._own_step or self._described_step(optimizer)
        return Recorder(
            step,
            trainer.model,
            optimizer,
            trainer.accelerator.scaler,
            self._directory,
            self._run_id,
            self._policy,
            schedulers=[trainer.lr_scheduler] if trainer.lr_scheduler is not None else [],
            first_step=trainer.state.global_step,
            checkpoints=self._checkpoints,
        )

    def _described_step(self, optimizer: Any) -> TransformersStep | None:
        described, self.replayable = describe_trainer(self._trainer, optimizer)
        if described is None:
            tell([f"workbench: a replay needs your own step (--step): {self.replayable}"])
            return None
        return TransformersStep(jsonio.dumps(described))


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


def describe_trainer(trainer: Any, optimizer: Any) -> tuple[dict[str, Any] | None, str]:
    """Describe the trainer's step so that it can be built again.

    Args:
        trainer: The trainer.
        optimizer: Its torch optimizer.

    Returns:
        The description, or None; and why there is none.
    """
    import transformers

    model = trainer.accelerator.unwrap_model(trainer.model)
    adapter = None
    base = model
    if hasattr(model, "peft_config"):
        adapter = _adapter(model)
        base = model.get_base_model()
    kind = type(base)
    if getattr(transformers, kind.__name__, None) is not kind:
        return None, f"the model {kind.__name__!r} is not one that transformers brings"
    if trainer.compute_loss_func is not None or _overridden(trainer, "compute_loss"):
        return None, "the trainer computes its loss with code of yours"
    described = describe_optimizer(optimizer, trainer.model)
    if described is None:
        return None, f"the optimizer {type(optimizer).__name__!r} is not one that torch brings"
    args = trainer.args
    scaler = trainer.accelerator.scaler
    precision = {"fp16": "float16", "bf16": "bfloat16"}.get(trainer.accelerator.mixed_precision)
    smoother = trainer.label_smoother
    return {
        "architecture": kind.__name__,
        "config": jsonio.loads(jsonio.dumps(base.config.to_dict())),
        "attention": getattr(base.config, "_attn_implementation", None),
        "optimizer": described,
        "autocast": precision,
        "scale": None if scaler is None else float(scaler.get_scale()),
        "max_grad_norm": args.max_grad_norm if args.max_grad_norm > 0 else None,
        "divides": _divides(trainer),
        "label_smoothing": None if smoother is None else smoother.epsilon,
        "shift_labels": "CausalLM" in kind.__name__ or "LMHead" in kind.__name__,
        "checkpointing": _checkpointing(base),
        "adapter": adapter,
    }, ""


def _checkpointing(model: Any) -> bool:
    """Whether activations are recomputed in backward; newer versions have another name for it."""
    names = ("is_activation_checkpointing", "is_gradient_checkpointing")
    return next((bool(getattr(model, name)) for name in names if hasattr(model, name)), False)


def _divides(trainer: Any) -> bool:
    """Whether the trainer divides a micro-batch's loss by their number."""
    told = getattr(trainer, "loss_is_scaled_for_ga", None)
    return not told if told is not None else not trainer.model_accepts_loss_kwargs


def _adapter(model: Any) -> dict[str, Any] | None:
    config = next(iter(model.peft_config.values())).to_dict()
    plain: dict[str, Any] = {}
    for key, value in config.items():
        item = sorted(value) if isinstance(value, set) else value
        plain[key] = getattr(item, "value", item)
    return {key: value for key, value in plain.items() if value is not None}


def _overridden(trainer: Any, name: str) -> bool:
    import transformers

    return getattr(type(trainer), name) is not getattr(transformers.Trainer, name)


def _inner(optimizer: Any) -> Any:
    """The torch optimizer within accelerate's wrappers."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def _without_unscaling(accelerator: Any, work: Callable[[], Any]) -> Any:
    """Run the library's clipping on gradients that are unscaled already: twice would raise."""
    wrapped = Wrapped()
    wrapped.wrap(accelerator, "unscale_gradients", lambda _: lambda *args, **kwargs: None)
    try:
        return work()
    finally:
        wrapped.restore()


def _callback(attachment: Attachment) -> Any:
    from transformers import TrainerCallback

    class Follow(TrainerCallback):
        """Passes on what only callbacks are told: logs, saved checkpoints, the end."""

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            """Values were logged."""
            del args, state, control
            attachment.loop.logged(logs or {})

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            """A checkpoint was saved."""
            del args, state, control
            attachment.checkpoint_saved()

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            """Training is over."""
            del args, state, control
            attachment.loop.end()
            if attachment.loop.started:
                attachment.recorder.close()

    return Follow()
