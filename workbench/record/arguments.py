"""What a recorder is given, checked and brought into one form."""

from __future__ import annotations

import operator
import os
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workbench.errors import UsageError
from workbench.record.policy import Policy
from workbench.step.values import text_of


def refuse_others(
    step: Any, model: Any, scaler: Any, schedulers: Any, settings: Mapping[str, Any]
) -> None:
    """Refuse objects and settings that are not what a recorder takes.

    Raises:
        UsageError: One that lacks what it needs, or is of another type.
    """
    if not hasattr(model, "named_parameters"):
        raise UsageError(
            f"Recorder(model={text_of(model)[:80]!r}) is no model, so no step of it could be "
            "recorded. Pass the torch.nn.Module that is trained."
        )
    if isinstance(step, type) or (step is not None and not hasattr(step, "forward")):
        raise UsageError(
            f"Recorder(step={text_of(step)[:80]!r}) is no training step, so nothing would replay. "
            "Pass an object of a class with build_model, build_optimizer, forward and loss, or "
            "None where you keep your own loop."
        )
    if scaler is not None and not all(hasattr(scaler, name) for name in ("scale", "step")):
        raise UsageError(
            f"Recorder(scaler={text_of(scaler)[:80]!r}) is no loss scaler, so its skips could not "
            "be told. Pass the torch.amp.GradScaler of the loop, or None."
        )

    _refuse_settings(**settings, schedulers=schedulers)


def _refuse_settings(
    directory: Any, run_id: Any, policy: Any, provenance: Any, schedulers: Any, first_step: Any
) -> None:
    wrong = {
        "directory": (directory, isinstance(directory, str | os.PathLike), "a path"),
        "run_id": (run_id, run_id is None or isinstance(run_id, str), "a name, or None"),
        "policy": (policy, policy is None or isinstance(policy, Policy), "a workbench.Policy"),
        "provenance": (
            provenance, provenance is None or isinstance(provenance, Mapping), "a mapping",
        ),
        "schedulers": (schedulers, isinstance(schedulers, Iterable), "a list of schedulers"),
        "first_step": (first_step, _counts(first_step), "a whole number of at least 0"),
    }  # fmt: skip
    for name, (value, fits, wanted) in wrong.items():
        if not fits:
            raise UsageError(
                f"Recorder({name}={text_of(value)[:80]!r}) is not understood, so nothing would be "
                f"recorded as meant. Pass {wanted}."
            )


def _counts(value: Any) -> bool:
    """Whether a value is a whole number of at least 0; a checkpoint's may be one of numpy."""
    try:
        return operator.index(value) >= 0
    except TypeError:
        return False


def as_list(optimizer: Any) -> list[Any]:
    """The optimizers as a list.

    Raises:
        UsageError: There is none.
    """
    found = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
    if not found or any(not hasattr(one, "param_groups") for one in found):
        raise UsageError(
            f"Recorder(optimizer={optimizer!r:.80}) is no optimizer, so no update could be "
            "recorded. Pass a torch.optim.Optimizer or a list of them."
        )
    return found


def as_batches(batch: Any, micro_batches: Sequence[Any] | None) -> list[Any]:
    """The micro-batches of a step.

    Raises:
        UsageError: Neither or both were given.
    """
    if (batch is None) == (micro_batches is None):
        given = "neither" if batch is None else "both"
        raise UsageError(
            f"train_step was given {given} of 'batch' and 'micro_batches', so it is not clear what "
            "to run. Pass one of them."
        )
    return [batch] if micro_batches is None else list(micro_batches)


def new_run_id() -> str:
    """A name for a run that was given none."""
    return f"run-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
