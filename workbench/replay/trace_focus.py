"""A trace of one part of the model: the rest of the step runs without statistics.

Events keep the numbers they have in a full trace, and so does the dataflow between them; only what
ops outside of the part read and wrote is not looked at. What comes into the part from outside is
counted as it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from workbench.replay.session import Session
from workbench.replay.trace import Trace, Tracer
from workbench.replay.trace_context import ModuleCall
from workbench.replay.trace_events import Event
from workbench.replay.trace_plan import floating, unwrapped
from workbench.replay.trace_quiet import quiet
from workbench.replay.trace_storage import Triple, exact_counts, region_of
from workbench.step.names import walk
from workbench.step.snapshots import copy_tree
from workbench.step.stages import STAGES, Stage

if TYPE_CHECKING:
    from torch import Tensor, nn

    from workbench.replay.replay import Replay
    from workbench.step.runner import StepRunner


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a step, by where its ops come from.

    Attributes:
        modules: Module paths whose ops belong to it, with everything below them; "" is all.
        skip: Module paths below them that do not belong to it.
        stages: Stages it is limited to; empty for all.
    """

    modules: tuple[str, ...] = ("",)
    skip: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()

    def holds(self, module: str, stage: str) -> bool:
        """Whether an op of this module and stage belongs to the part."""
        if self.stages and stage not in self.stages:
            return False
        return _below(module, self.modules) and not _below(module, self.skip)


def _below(path: str, roots: tuple[str, ...]) -> bool:
    return any(not root or path == root or path.startswith(f"{root}.") for root in roots)


@dataclass(frozen=True, slots=True)
class Border:
    """A non-finite tensor at a module's border.

    Attributes:
        kind: ``input``, ``output`` or ``gradient`` (of either).
        module: Path of the module.
        nth: Which call of that module, from 0.
        counts: NaN, +Inf and -Inf.
        producers: Events that wrote it, newest first.
        leaf: ``(kind, name)`` when it was so before the step, else None.
    """

    kind: str
    module: str
    nth: int
    counts: Triple
    producers: tuple[int, ...]
    leaf: tuple[str, str] | None


@dataclass
class PartTrace:
    """A trace of some parts, and what was non-finite at module borders.

    Attributes:
        trace: The trace; statistics are there for events of the parts only.
        parts: The parts.
        borders: Non-finite tensors at module borders, in order.
    """

    trace: Trace
    parts: tuple[Part, ...]
    borders: list[Border]

    def inside(self, event: Event) -> bool:
        """Whether statistics were taken of an event."""
        return any(part.holds(event.module, event.stage) for part in self.parts)

    def looked_at(self) -> int:
        """How many events statistics were taken of."""
        return sum(self.inside(event) for event in self.trace.graph)


Install = Callable[[Session, ExitStack], None]
"""Puts hooks on a built session; what it pushes on the stack is taken off again."""


def trace_part(replay: Replay, parts: Sequence[Part], install: Install | None = None) -> PartTrace:
    """Run the step once more from its sealed state with the ops of some parts recorded.

    Args:
        replay: The replay; its live session is left alone.
        parts: Which parts statistics are taken of.
        install: Puts further hooks on the model that is traced.
    """
    replay.source.require("input")
    session = Session(replay.source, replay.nearest)
    missing = replay.source.unavailable()
    last = [stage for stage in STAGES if stage not in missing][-1]
    tracer = _PartTracer(session.runner, tuple(parts), session.batches)
    with session.running(traced=True), ExitStack() as stack:
        if install is not None:
            install(session, stack)
        trace = tracer.run(last, None, stop_when_bad=True)
    return PartTrace(trace, tuple(parts), tracer.borders)


class _PartTracer(Tracer):
    """One traced run with statistics for some parts."""

    def __init__(
        self, runner: StepRunner, parts: tuple[Part, ...], micro_batches: Sequence[Any]
    ) -> None:
        super().__init__(runner, micro_batches, _within(parts))
        self.borders: list[Border] = []
        self._begun: dict[str, int] = {}
        self._ended: dict[str, int] = {}

    def run(self, until: Stage | None, before: Any, stop_when_bad: bool) -> Trace:
        handles = [
            module.register_forward_pre_hook(self._entering(path), with_kwargs=True)
            for path, module in walk(self.runner.model)
        ]
        try:
            return super().run(until, before, stop_when_bad)
        finally:
            for handle in handles:
                handle.remove()

    def _entering(self, path: str) -> Any:
        def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            nth = self._begun[path] = self._begun.get(path, -1) + 1
            found = tensors_in((args, kwargs))
            with quiet():
                self._borders("input", path, nth, found)
            self._watch(path, nth, found)

        return enter

    def _after_call(self, call: ModuleCall, output: object) -> None:
        nth = self._ended[call.path] = self._ended.get(call.path, -1) + 1
        found = tensors_in(output)
        with quiet():
            self._borders("output", call.path, nth, found)
        self._watch(call.path, nth, found)

    def _watch(self, path: str, nth: int, tensors: Iterable[Tensor]) -> None:
        if self.context.unit.stage not in ("forward", "loss"):
            return
        for tensor in tensors:
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.register_hook(self._gradient_of(path, nth))

    def _gradient_of(self, path: str, nth: int) -> Any:
        def seen(gradient: Tensor) -> None:
            with quiet():
                self._borders("gradient", path, nth, [gradient])

        return seen

    def _borders(self, kind: str, path: str, nth: int, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            counts = exact_counts(tensor)
            if not any(counts):
                continue
            record = self.log.record(tensor)
            producers, remains = self.log.producers(record, region_of(tensor))
            leaf = (record.leaf or ("captured_tensor", f"{kind} of {path}")) if remains else None
            self.borders.append(Border(kind, path, nth, counts, producers, leaf))


def _within(parts: tuple[Part, ...]) -> Callable[[str, str], bool]:
    """Whether a module and a stage lie within one of the parts, remembered."""
    known: dict[tuple[str, str], bool] = {}

    def within(module: str, stage: str) -> bool:
        key = (module, stage)
        found = known.get(key)
        if found is None:
            found = known[key] = any(part.holds(module, stage) for part in parts)
        return found

    return within


def tensors_in(tree: Any) -> list[Tensor]:
    """List the floating strided tensors of any nesting, functorch's wrappers taken off."""
    if type(tree) is torch.Tensor:  # as most modules give, and they are called often
        plain = unwrapped(tree)
        return [plain] if floating(plain) and plain.layout is torch.strided else []
    found: list[Tensor] = []

    def add(tensor: Tensor) -> Tensor:
        plain = unwrapped(tensor)
        if floating(plain) and plain.layout == torch.strided:
            found.append(plain)
        return tensor

    copy_tree(tree, add)
    return found
