"""Mark the finer stages that hide inside one call, while a step is traced.

``scaler.step(optimizer)`` unscales, checks and steps; a user's ``update`` may call all of it. The
marks are instance attributes set for the time of a traced replay and removed afterwards; nothing is
marked while a run is recorded or replayed without probes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from workbench.step.stages import Stage

Where = Literal["module", "loss", "optimizer", "clip", "scaler", "batch", "reduce", "logging"]
Mark = Callable[["Stage | None", Where], Any]
"""Returns a context manager that sets stage (None keeps it) and where for its duration."""


@contextmanager
def stage_marks(
    scaler: Any,
    optimizers: Sequence[Optimizer],
    mark: Mark,
) -> Iterator[None]:
    """Wrap the scaler's and the optimizers' methods so that each marks its own stage.

    Args:
        scaler: The loss scaler, or None.
        optimizers: The optimizers.
        mark: Gives the context manager that holds a stage and where for the call's duration.
    """
    wanted: list[tuple[Any, str, Stage | None, Where]] = [
        (optimizer, "step", "update", "optimizer") for optimizer in optimizers
    ]
    if scaler is not None:
        wanted += [
            (scaler, "scale", None, "scaler"),
            (scaler, "unscale_", "unscale", "scaler"),
            (scaler, "step", "unscale", "scaler"),
            (scaler, "update", "after_update", "scaler"),
        ]
    undo: list[Callable[[], None]] = []
    try:
        for owner, name, stage, where in wanted:
            if callable(getattr(owner, name, None)):
                undo.append(_wrap(owner, name, stage, where, mark))
        yield
    finally:
        for restore in reversed(undo):
            restore()


def _wrap(
    owner: Any,
    name: str,
    stage: Stage | None,
    where: Where,
    mark: Mark,
) -> Callable[[], None]:
    original = getattr(owner, name)
    own = name in vars(owner)

    @functools.wraps(original)
    def marked(*args: Any, **kwargs: Any) -> Any:
        with mark(stage, where):
            return original(*args, **kwargs)

    setattr(owner, name, marked)

    def restore() -> None:
        if own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)

    return restore
