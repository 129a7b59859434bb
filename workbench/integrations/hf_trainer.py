"""A Hugging Face Trainer described for a replay, and made to run a few steps for a drill."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from workbench.integrations.describe import describe_step
from workbench.integrations.drilling import attributes, preserved
from workbench.integrations.loop import inner_optimizer


def describe_trainer(trainer: Any, optimizer: Any) -> tuple[dict[str, Any] | None, str]:
    """Describe the trainer's step so that it can be built again.

    Args:
        trainer: The trainer.
        optimizer: Its torch optimizer.

    Returns:
        The description, or None; and why there is none.
    """
    if trainer.compute_loss_func is not None or _overridden(trainer, "compute_loss"):
        return None, "the trainer computes its loss with code of yours"
    described, why = describe_step(trainer.model, optimizer, trainer.accelerator)
    if described is None:
        return None, why
    norm = trainer.args.max_grad_norm
    smoother = trainer.label_smoother
    return described | {
        "max_grad_norm": norm if norm and norm > 0 else None,
        "divides": _divides(trainer),
        "label_smoothing": None if smoother is None else smoother.epsilon,
    }, ""


def _divides(trainer: Any) -> bool:
    """Whether the trainer divides a micro-batch's loss by their number."""
    told = getattr(trainer, "loss_is_scaled_for_ga", None)
    return not told if told is not None else not trainer.model_accepts_loss_kwargs


def _overridden(trainer: Any, name: str) -> bool:
    import transformers

    return getattr(type(trainer), name) is not getattr(transformers.Trainer, name)


@contextmanager
def short_training(trainer: Any, steps: int) -> Iterator[None]:
    """Let a trainer run a few steps with no saving, evaluation or reporting; then as before."""
    from transformers import DefaultFlowCallback
    from transformers.trainer_utils import IntervalStrategy, SaveStrategy

    accelerator = trainer.accelerator
    undo = [
        attributes(one)
        for one in (trainer, trainer.callback_handler, accelerator, accelerator.gradient_state)
    ]
    schedulers = [] if trainer.lr_scheduler is None else [trainer.lr_scheduler]
    optimizers = [] if trainer.optimizer is None else [inner_optimizer(trainer.optimizer)]
    with (
        tempfile.TemporaryDirectory(prefix="workbench-drill-") as folder,
        preserved(trainer.model, optimizers, schedulers, accelerator.scaler),
    ):
        try:
            trainer.args = copy.copy(trainer.args)
            vars(trainer.args).update(
                output_dir=folder, max_steps=steps, save_strategy=SaveStrategy.NO,
                eval_strategy=IntervalStrategy.NO, load_best_model_at_end=False,
                save_total_limit=None, push_to_hub=False, report_to=[], disable_tqdm=True,
                logging_strategy=IntervalStrategy.STEPS, logging_steps=1,
            )  # fmt: skip
            trainer.callback_handler.callbacks = [DefaultFlowCallback()]
            trainer.state = copy.deepcopy(trainer.state)
            trainer.control = copy.copy(trainer.control)
            yield
        finally:
            for one in undo:
                one()
