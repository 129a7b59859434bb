"""Where in the step an op is: stage, module, source line, forward op of a backward op."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

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


class Place(NamedTuple):
    """Where in the step an op runs; the same object as long as that does not change."""

    stage: Stage
    phase: str
    micro_step: int
    where: Where
    module: str
    in_loss: bool


class StepContext:
    """The position of the running op within the step.

    Attributes:
        marks: Stage and where set by the scaler's and optimizers' own methods, innermost last.
        modules: Running module calls, innermost last.
        calls: Number of module calls so far.
    """

    def __init__(self) -> None:
        self._unit = Unit("input")
        self.marks: list[tuple[Stage | None, Where]] = []
        self.modules: list[ModuleCall] = []
        self.calls = 0
        self._place: Place | None = None

    @property
    def unit(self) -> Unit:
        """The runner's running unit."""
        return self._unit

    @unit.setter
    def unit(self, unit: Unit) -> None:
        self._unit = unit
        self._place = None

    @property
    def place(self) -> Place:
        """Where the running op is, worked out once until something changes."""
        found = self._place
        if found is None:
            unit = self._unit
            found = self._place = Place(
                self.stage,
                unit.phase,
                unit.micro_step,
                self.where,
                self.module,
                unit.stage == "loss",
            )
        return found

    def enter(self, path: str, kind: str) -> None:
        """Begin a module call."""
        self.modules.append(ModuleCall(path, kind, self.calls, len(self.marks)))
        self.calls += 1
        self._place = None

    def leave(self) -> ModuleCall | None:
        """End the innermost module call; None when none is running."""
        self._place = None
        return self.modules.pop() if self.modules else None

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
        self._place = None
        try:
            yield
        finally:
            self.marks.pop()
            self._place = None


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
            context.enter(path, kind)

        def leave(_module: nn.Module, _inputs: object, output: object) -> None:
            call = context.leave()
            if call is not None:
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
        # by the address of the code: to hash a code object takes as long as a small op's arithmetic
        self._kinds: dict[int, str | int] = {}
        self._codes: list[CodeType] = []
        self._lines: dict[tuple[int, int], str] = {}
        self._engine: FrameType | None = None
        self._below: tuple[str, bool, bool] = ("", False, True)

    def find(self, depth: int = 2) -> tuple[str, bool, bool]:
        """Look up the stack, beginning some frames up; see ``above``."""
        return self.above(sys._getframe(depth))

    def above(self, start: FrameType) -> tuple[str, bool, bool]:
        """Look up the stack.

        Args:
            start: The frame to begin at.

        Returns:
            The source line; whether a loss function's frame was passed on the way; whether the
            autograd engine's was: without it, user code runs the op, also within backward.
        """
        if start is self._engine:
            return self._below
        frame: FrameType | None = start
        in_loss = False
        kinds = self._kinds
        while frame is not None:
            code = frame.f_code
            kind = kinds.get(id(code))
            if kind is None:
                kind = self._classified(code)
            if kind != _PASSED:
                if kind == _LOSS:
                    in_loss = True
                elif kind == _ENGINE:
                    return self._from_engine(frame, in_loss)
                else:
                    return self._line(frame, str(kind)), in_loss, False
            frame = frame.f_back
        return "", in_loss, False

    def _classified(self, code: CodeType) -> str | int:
        kind = self._kinds[id(code)] = _classify(code)
        self._codes.append(code)  # its address stays its own
        return kind

    def _line(self, frame: FrameType, name: str) -> str:
        if not name:  # what called the runner is no part of the step
            return ""
        key = (id(frame.f_code), frame.f_lasti)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = f"{name}:{frame.f_lineno}"
        return line

    def _from_engine(self, frame: FrameType, in_loss: bool) -> tuple[str, bool, bool]:
        """What lies below the engine's frame stays the same as long as that frame runs."""
        if frame is not self._engine:
            self._engine = frame
            below: FrameType | None = frame.f_back
            found = ""
            passed = False
            while below is not None:
                kind = self._kinds.get(id(below.f_code))
                if kind is None:
                    kind = self._classified(below.f_code)
                if isinstance(kind, str):
                    found = self._line(below, kind)
                    break
                passed = passed or kind == _LOSS
                below = below.f_back
            self._below = (found, passed, True)
        line, loss_below, _ = self._below
        return line, in_loss or loss_below, True

    def release(self) -> None:
        """Let go of the last engine's frame and of what it holds."""
        self._engine = None


_PASSED: Final = 0
_LOSS: Final = 1
_ENGINE: Final = 2


def _classify(code: CodeType) -> str | int:
    """File name of a user's code, empty at the runner; else what kind of frame it is."""
    path = code.co_filename
    if path == _RUNNER:
        return ""
    if not path.startswith(_SKIPPED):
        return Path(path).name
    if code.co_name == "_engine_run_backward":
        return _ENGINE
    loss = path.startswith(_TORCH) and _LOSS_FRAME.search(code.co_name) is not None
    return _LOSS if loss else _PASSED


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
