"""A replay that runs out of memory: where it did, and what to shrink."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from workbench.errors import CannotRunError
from workbench.step.names import walk

if TYPE_CHECKING:
    from workbench.replay.source import Source
    from workbench.step.runner import Outcome

_WORDS = ("can't allocate memory", "out of memory", "not enough memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, on a GPU or on the host."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _WORDS)


def module_of(error: BaseException, model: nn.Module) -> str | None:
    """Path of the innermost module whose code was running when an exception was raised.

    It is read from the traceback, so that nothing has to be hooked; backward has no modules.
    """
    paths = {id(module): path for path, module in walk(model)}
    found: str | None = None
    frame = error.__traceback__
    while frame is not None:
        owner = frame.tb_frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and id(owner) in paths:
            found = paths[id(owner)]
        frame = frame.tb_next
    return found


def refuse_out_of_memory(outcome: Outcome | None, model: nn.Module, source: Source) -> None:
    """Say where a unit ran out of memory, unless that is what was recorded.

    Raises:
        CannotRunError: It did; the message names stage and module, and what to shrink.
    """
    error = None if outcome is None else outcome.exception
    if outcome is None or error is None or not is_out_of_memory(error):
        return
    bad = source.first_bad
    if bad is not None and (bad.stage, bad.tensor) == (outcome.unit.stage, outcome.tensor):
        return
    path = module_of(error, model)
    if path is None:
        where = "outside of any module's own code"
    else:
        where = f"in the module '{path}'" if path else "in the model's own forward"
    raise CannotRunError(
        f"The replay ran out of memory in {outcome.unit.stage}, {where} ({_said(error)}), so the "
        f"step was not replayed. The bundle is untouched. {_shrink(outcome, source)}"
    ) from error


def _shrink(outcome: Outcome, source: Source) -> str:
    ways = ["keep fewer samples (--set keep_samples=0)", "run in bfloat16 (--set dtype=bfloat16)"]
    if source.recorded.device != "cpu":
        ways.append("run on the host (--set device=cpu)")
    said = f"To shrink it, {' or '.join(ways)}: each makes it a diagnostic run."
    stage = outcome.unit.stage
    if stage in ("input", "forward"):
        return said
    before = "forward" if stage == "loss" else "loss"
    return f"{said} What comes before can be replayed as recorded with --until {before}."


def refuse_while_building(error: Exception, step: object) -> None:
    """Say that a step ran out of memory before anything of it ran.

    Raises:
        CannotRunError: It did.
    """
    if not is_out_of_memory(error):
        return
    raise CannotRunError(
        f"The replay ran out of memory while the model of '{type(step).__name__}' was built and "
        f"its state put back ({_said(error)}), so nothing was run. The bundle is untouched. Use a "
        "device with more memory (--set device=cpu), or end other processes that hold memory."
    ) from error


def _said(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    text = next(
        (line for line in lines if any(w in line for w in _WORDS)), lines[0] if lines else ""
    )
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
