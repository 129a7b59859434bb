"""Where in the step an op is: stage, module, source line, forward op of a backward op."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from workbench.step.names import walk
from workbench.step.stages import Stage, Unit

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from torch import nn

    from workbench.step.marks import Where

_PACKAGE = Path(__file__).resolve().parents[1]
_TORCH = str(Path(torch.__file__).resolve().parent)
_OWN = tuple(str(_PACKAGE / room) for room in ("step", "replay", "record", "diagnose", "numerics"))
_RUNNER = str(_PACKAGE / "step" / "runner.py")
_SKIPPED = (_TORCH, *_OWN, "<frozen", "<string>")
_LOSS_FRAME = re.compile(r"(_loss|^cross_entropy|^kl_div|^binary_cross_entropy.*)$")

_DEFAULT_WHERE: dict[Stage, Where] = {
    "input": "batch",
    "forward": "module",
    "loss": "loss",
    "backward": "loss",
    "reduce": "reduce",
    "unscale": "scaler",
    "clip": "clip",
    "update": "optimizer",
    "after_update": "scaler",
    "logging": "logging",
}


@dataclass(slots=True)
class ModuleCall:
    """One running call of a module; ``depth`` is the number of marks it was begun under."""

    path: str
    kind: str
    order: int
    depth: int = 0


@dataclass
class StepContext:
    """The position of the running op within the step.

    Attributes:
        unit: The runner's running unit.
        marks: Stage and where set by the scaler's and optimizers' own methods, innermost last.
        modules: Running module calls, innermost last.
        calls: Number of module calls so far.
    """

    unit: Unit = field(default_factory=lambda: Unit("input"))
    marks: list[tuple[Stage | None, Where]] = field(default_factory=list)
    modules: list[ModuleCall] = field(default_factory=list)
    calls: int = 0

    @property
    def stage(self) -> Stage:
        """The stage by what is done: an inner mark beats the runner's unit."""
        for stage, _ in reversed(self.marks):
            if stage is not None:
                return stage
        return self.unit.stage

    @property
    def where(self) -> Where:
        """What kind of code is running."""
        if self.modules and self.modules[-1].depth >= len(self.marks):
            return "logging" if self.unit.stage == "logging" else "module"
        if self.marks:
            return self.marks[-1][1]
        return _DEFAULT_WHERE[self.unit.stage]

    @property
    def module(self) -> str:
        """Path of the innermost running module, empty at the root or outside."""
        return self.modules[-1].path if self.modules else ""

    @contextmanager
    def mark(self, stage: Stage | None, where: Where) -> Iterator[None]:
        """Hold a stage and a where for the duration of a call."""
        self.marks.append((stage, where))
        try:
            yield
        finally:
            self.marks.pop()


def hook_modules(
    context: StepContext,
    model: nn.Module,
    after_call: Callable[[ModuleCall, Any], None],
) -> Callable[[], None]:
    """Follow module calls with forward hooks, which leave gradient bits alone.

    Args:
        context: Whose module stack is kept.
        model: The model.
        after_call: Called with the call and its output when a module returns.

    Returns:
        A function that removes the hooks.
    """
    handles = []
    for path, module in walk(model):
        kind = type(module).__name__

        def enter(_module: nn.Module, _inputs: object, path: str = path, kind: str = kind) -> None:
            context.modules.append(ModuleCall(path, kind, context.calls, len(context.marks)))
            context.calls += 1

        def leave(_module: nn.Module, _inputs: object, output: object) -> None:
            if not context.modules:
                return
            call = context.modules.pop()
            after_call(call, output)

        handles.append(module.register_forward_pre_hook(enter, prepend=True))
        handles.append(module.register_forward_hook(leave, always_call=True))

    def remove() -> None:
        for handle in handles:
            handle.remove()

    return remove


class SourceFinder:
    """Finds the user's line that the running op comes from.

    Frames of torch and of this package's own machinery are passed over. The answer is
    ``file.py:31``, without folders: paths of a machine do not belong into what is shared.
    """

    def __init__(self) -> None:
        self._known: dict[CodeType, tuple[str | None, bool, bool]] = {}

    def find(self) -> tuple[str, bool, bool]:
        """Look up the stack.

        Returns:
            The source line; whether a loss function's frame was passed on the way; whether the
            autograd engine's was: without it, user code runs the op, also within backward.
        """
        frame: FrameType | None = sys._getframe(2)
        in_loss = in_engine = False
        known = self._known
        while frame is not None:
            code = frame.f_code
            found = known.get(code)
            if found is None:
                found = known[code] = _classify(code)
            name, is_loss, is_engine = found
            if name is not None:
                # what called the runner is no part of the step
                line = f"{name}:{frame.f_lineno}" if name else ""
                return line, in_loss, in_engine
            in_loss = in_loss or is_loss
            in_engine = in_engine or is_engine
            frame = frame.f_back
        return "", in_loss, in_engine


def _classify(code: CodeType) -> tuple[str | None, bool, bool]:
    """File name of a user's code, empty at the runner, else None; torch's loss or engine or not."""
    path = code.co_filename
    if path == _RUNNER:
        return "", False, False
    if not path.startswith(_SKIPPED):
        return Path(path).name, False, False
    loss = path.startswith(_TORCH) and _LOSS_FRAME.search(code.co_name) is not None
    return None, loss, code.co_name == "_engine_run_backward"


def module_of_exception(error: BaseException, model: nn.Module) -> str | None:
    """Find the innermost module of the model whose method raised, from the traceback's frames."""
    paths = {id(module): path for path, module in walk(model)}
    found: str | None = None
    trace = error.__traceback__
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self", trace.tb_frame.f_locals.get("s"))
        if id(owner) in paths:
            found = paths[id(owner)]
        trace = trace.tb_next
    return found


def source_of_exception(error: BaseException) -> str:
    """Find the innermost user's line in an exception's traceback."""
    found = ""
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith(_SKIPPED):
            found = f"{Path(name).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
