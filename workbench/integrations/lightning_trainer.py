"""What is asked of Lightning's Trainer: whether it is known, and a short one for a drill."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from workbench.errors import UsageError
from workbench.integrations.drilling import attributes
from workbench.step.snapshots import plain


def refuse_unknown(trainer: Any) -> None:
    """Refuse what has not the parts that are wrapped.

    Raises:
        UsageError: Not a trainer this integration knows.
    """
    needed = ("precision_plugin", "strategy", "_logger_connector", "_checkpoint_connector")
    known = all(hasattr(trainer, name) for name in needed)
    if not known or not hasattr(trainer.precision_plugin, "_after_closure"):
        raise UsageError(
            f"attach() was given a {type(trainer).__name__!r}, which is no Lightning Trainer of a "
            "version this integration knows. Pass the lightning.Trainer (2.x), or use "
            "workbench.Recorder in your own loop."
        )


def base_precision() -> Any:
    """Lightning's own precision plugin, whose clipping the others share."""
    from lightning.pytorch.plugins.precision import Precision

    return Precision


def clips_itself(module: Any) -> bool:
    """Whether a module clips gradients with code of its own."""
    from lightning.pytorch import LightningModule

    own = type(module).configure_gradient_clipping
    return own is not LightningModule.configure_gradient_clipping


def facts_of_step(trainer: Any, autocast: str) -> dict[str, Any]:
    """What a ``LightningStep`` is told of the run: hyperparameters as far as they are plain.

    Args:
        trainer: The trainer, with its module.
        autocast: The autocast dtype, or ``off``.
    """
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    by_value = str(trainer.gradient_clip_algorithm or "norm").rpartition(".")[2].lower() == "value"
    limit = trainer.gradient_clip_val or None
    given = dict(trainer.lightning_module.hparams)
    return {
        "hyperparameters": given if plain(given) else {},
        "precision": autocast,
        "scale": None if scaler is None else float(scaler.get_scale()),
        "accumulate": trainer.accumulate_grad_batches,
        "clip_value": limit if by_value else None,
        "max_grad_norm": None if by_value else limit,
    }


def short_trainer(trainer: Any, steps: int) -> Any:
    """A trainer of a few steps, with no saving, validation or reporting."""
    import lightning

    device = trainer.strategy.root_device.type
    return lightning.Trainer(
        max_steps=steps,
        accelerator="gpu" if device == "cuda" else device,
        devices=1,
        plugins=[copy.deepcopy(_bare(trainer.precision_plugin))],
        accumulate_grad_batches=trainer.accumulate_grad_batches,
        gradient_clip_val=trainer.gradient_clip_val,
        gradient_clip_algorithm=trainer.gradient_clip_algorithm,
        log_every_n_steps=1,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def _bare(plugin: Any) -> Any:
    """A precision plugin without the methods that were wrapped: those hold on to this trainer."""
    bare = copy.copy(plugin)
    for name in [name for name, value in vars(bare).items() if hasattr(value, "__wrapped__")]:
        delattr(bare, name)
    scaler = getattr(bare, "scaler", None)
    if scaler is not None:
        bare.scaler = _bare(scaler)
    return bare


@contextmanager
def left_alone(module: Any) -> Iterator[None]:
    """Put the module's own attributes, its trainer among them, back after the block."""
    undo = attributes(module)
    try:
        yield
    finally:
        undo()
