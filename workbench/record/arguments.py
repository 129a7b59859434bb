"""What a recorder is given, checked and brought into one form."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from workbench.errors import UsageError


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
