"""A bundle of a step that was never recorded: its own objects, one batch, and a checkpoint.

The step is run once through the recorder, which makes a bundle in a temporary directory; from then
on everything is as with any other bundle.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.errors import BundleError, CannotRunError, NonFiniteError, UsageError

KEYS = {
    "model": ("model", "model_state_dict", "state_dict", "module"),
    "optimizer": ("optimizer", "optimizer_state_dict", "optimizers", "optimizer_states"),
    "scaler": ("scaler", "grad_scaler", "scaler_state_dict"),
    "step": ("step", "global_step"),
}
"""Names under which training scripts keep the parts of a checkpoint."""


def record_step(
    step: Any, batch: Any, checkpoint: Any = None, directory: Path | None = None
) -> Path:
    """Run a step once and keep it as a bundle.

    Args:
        step: The training step, an object or its class.
        batch: The batch, or ``MicroBatches([...])``.
        checkpoint: File of parameters (and optimizer state) to start from: safetensors, or written
            by ``torch.save`` and readable with ``weights_only=True``; or the loaded mapping.
        directory: Where the bundle goes; a new temporary directory when None.

    Returns:
        The bundle.

    Raises:
        UsageError: ``step`` is no training step.
        CannotRunError: The checkpoint cannot be read or does not fit, or no bundle was made.
    """
    from workbench.record import Policy, Recorder
    from workbench.step import TrainingStep

    made = step() if isinstance(step, type) else step
    if not isinstance(made, TrainingStep):
        raise UsageError(
            f"from_step() was given {type(made).__name__!r}, which is no TrainingStep, so it is "
            "not known how to build its model and run it. Write a class that derives from "
            "workbench.TrainingStep; `Workbench(bundle)` opens a recorded step."
        )
    model = made.build_model()
    built = made.build_optimizer(model)
    optimizers = list(built) if isinstance(built, Sequence) else [built]
    scaler = made.build_scaler()
    at = _load(checkpoint, model, optimizers, scaler)
    recorder = Recorder(
        made,
        model,
        built,
        scaler=scaler,
        directory=directory or Path(tempfile.mkdtemp(prefix="workbench-")),
        run_id="from-step",
        policy=Policy(on_nonfinite="skip", recovery_every=1),
        schedulers=tuple(made.build_schedulers(optimizers)),
        first_step=at,
    )
    several = batch if isinstance(batch, MicroBatches) else None
    try:
        result = recorder.train_step(
            None if several is not None else batch,
            micro_batches=several,
            capture="opened from its own objects with Workbench.from_step",
        )
    except NonFiniteError as error:
        return Path(str(error.bundle))
    if result.incident is None:
        why = "; ".join(recorder.failures) or "the recorder gave no reason"
        raise CannotRunError(
            f"The step {type(made).__name__!r} ran, but no bundle of it was made in "
            f"{str(recorder.directory)!r} ({why}), so there is nothing to open."
        )
    return Path(result.incident)


class MicroBatches(list[Any]):
    """Several batches of one step, whose gradients are accumulated."""


def _load(checkpoint: Any, model: Any, optimizers: Sequence[Any], scaler: Any) -> int:
    """Put a checkpoint into the objects; returns the step it names, or 0."""
    if checkpoint is None:
        return 0
    name = "the given mapping" if isinstance(checkpoint, Mapping) else repr(str(checkpoint))
    content = checkpoint if isinstance(checkpoint, Mapping) else _read(Path(checkpoint))
    weights = _part(content, "model")
    try:
        model.load_state_dict(content if weights is None else weights)
        states = _part(content, "optimizer")
        if states is not None:
            many = states if isinstance(states, list | tuple) else [states]
            for optimizer, state in zip(optimizers, many, strict=True):
                optimizer.load_state_dict(state)
        state = _part(content, "scaler")
        if state is not None and scaler is not None:
            scaler.load_state_dict(state)
    except (RuntimeError, ValueError, KeyError, AttributeError, TypeError) as error:
        said = " ".join(str(error).split())[:300]
        raise CannotRunError(
            f"The checkpoint {name} does not fit what the step builds ({said}), so nothing was "
            "run. Give the checkpoint of this very model, or a mapping of its state dict."
        ) from error
    at = _part(content, "step")
    return at if isinstance(at, int) and at >= 0 else 0


def _part(content: Mapping[str, Any], what: str) -> Any:
    return next((content[key] for key in KEYS[what] if key in content), None)


def _read(path: Path) -> Mapping[str, Any]:
    """A checkpoint file's content; no code in it is run."""
    from pickle import UnpicklingError  # the error alone: nothing is unpickled here

    import torch

    if not path.is_file():
        raise UsageError(
            f"There is no checkpoint file {str(path)!r}, so nothing was run. Give a file of "
            "safetensors or of torch.save; of a folder, name the file in it."
        )
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, UnpicklingError) as error:
        said = " ".join(str(error).split())[:200]
        raise CannotRunError(
            f"The checkpoint {str(path)!r} cannot be read without running code in it ({said}), so "
            "it was not. Save the state dicts alone with torch.save, or as safetensors."
        ) from error
    if not isinstance(content, Mapping):
        raise BundleError(
            f"The checkpoint {str(path)!r} holds {type(content).__name__!r} where a mapping of "
            "state dicts is read, so nothing was run."
        )
    return content
