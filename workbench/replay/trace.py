"""Trace one replayed step: one event per executed aten op, with dataflow and module ranges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from workbench.replay.calls import CallMode, unnumbered
from workbench.replay.trace_collection import old_objects_set_aside
from workbench.replay.trace_context import (
    ModuleCall,
    StepContext,
    hook_modules,
    module_of_exception,
    source_of_exception,
)
from workbench.replay.trace_events import Event, KeptEvent, LayerRow
from workbench.replay.trace_layers import Layers, leading_tensors
from workbench.replay.trace_mode import TraceMode
from workbench.replay.trace_plan import unwrapped
from workbench.replay.trace_quiet import quiet
from workbench.replay.trace_sinks import find_sink, scaler_tensors
from workbench.replay.trace_storage import StorageLog, Triple, region_of
from workbench.replay.trace_table import events_table, layers_table
from workbench.replay.trace_threads import threads_seen
from workbench.step import gates
from workbench.step.marks import stage_marks
from workbench.step.names import inner_model, named_buffers, named_parameters
from workbench.step.stages import STAGES, Stage, Unit
from workbench.step.values import text_of

if TYPE_CHECKING:
    from torch import Tensor

    from workbench.evidence import Table
    from workbench.step.runner import Outcome, StepRunner


@dataclass(frozen=True, slots=True)
class Sink:
    """A non-finite tensor that the step's result depends on.

    Attributes:
        kind: Kind of sink, as the gates name it.
        name: Stable name, ``gradient:head.weight``.
        counts: Its NaN, +Inf and -Inf.
        producers: Events that wrote it, newest first.
        leaf: ``(kind, name)`` when it was so before the step, else None.
    """

    kind: str
    name: str
    counts: Triple
    producers: tuple[int, ...]
    leaf: tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception that ended the traced step.

    Attributes:
        stage: The stage it was raised in.
        type: Name of its class.
        message: Its text.
        module: Innermost module whose method raised, or None.
        source: Innermost user's line.
        event: The op that raised it, or None when Python code did.
    """

    stage: str
    type: str
    message: str
    module: str | None
    source: str
    event: int | None


@dataclass
class Trace:
    """What one traced step did.

    Attributes:
        graph: All events, in order of execution.
        rows: Ranges at module borders and of parameters and their gradients.
        sinks: Non-finite sinks at the end, those of the gate that tripped first.
        outcomes: What each unit did.
        kept: Real arguments of the events asked for.
        raised: The exception that ended the step, or None.
        loss_finite: Whether all losses computed were finite.
        scale: The loss scale the step began with, or None.
        contaminated: Names of non-finite tensors at the end, by ``parameters``, ``buffers`` and
            ``optimizer_state``.
        skips: Non-finite gradients because of which the scaler skipped the update.
        threads: Whether threads were started within the step: their ops are not traced.
    """

    graph: Sequence[Event] = field(default_factory=list)
    rows: list[LayerRow] = field(default_factory=list)
    sinks: list[Sink] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    kept: dict[int, KeptEvent] = field(default_factory=dict)
    raised: Raised | None = None
    loss_finite: bool = True
    scale: float | None = None
    contaminated: dict[str, list[str]] = field(default_factory=dict)
    threads: bool = False
    skips: list[Sink] = field(default_factory=list)

    @cached_property
    def events(self) -> Table:
        """The events as a table, one row each."""
        return events_table(self.graph)

    @cached_property
    def layers(self) -> Table:
        """The ranges as a table, one row for each module call and tensor."""
        return layers_table(self.rows)

    @property
    def first_bad(self) -> Outcome | None:
        """The first outcome whose gate tripped."""
        return next((o for o in self.outcomes if o.status == "bad"), None)


def trace_step(
    runner: StepRunner,
    *,
    until: Stage | None = None,
    before: Callable[[], None] | None = None,
    micro_batches: Sequence[Any] = (),
    stop_when_bad: bool = True,
    exponents: bool = True,
) -> Trace:
    """Run the rest of a step that was begun and trace it.

    Args:
        runner: A runner after ``begin``.
        until: Last stage to run; None runs all.
        before: Called right before the first unit, inside the trace's set-up: restores the RNG.
        micro_batches: The step's micro-batches, to name them as leaves.
        stop_when_bad: Whether to stop at the first gate that trips, as a recorder that raises does.
        exponents: Whether the ranges say how magnitudes are spread over binary exponents.

    Returns:
        The trace. An exception of the user's code ends the step and is described in it.
    """
    tracer = Tracer(runner, micro_batches, exponents=exponents)
    return tracer.run(until, before, stop_when_bad)


class Tracer:
    """One traced run.

    Args:
        runner: A runner after ``begin``.
        micro_batches: The step's micro-batches, to name them as leaves.
        looks: Says by module and stage of which events the tensors are looked at; None: of all.
        exponents: Whether the ranges say how magnitudes are spread over binary exponents.
    """

    def __init__(
        self,
        runner: StepRunner,
        micro_batches: Sequence[Any],
        looks: Callable[[str, str], bool] | None = None,
        exponents: bool = False,
    ) -> None:
        self.runner = runner
        self.context = StepContext()
        self.log = StorageLog()
        self.calls = CallMode()
        self.mode = TraceMode(self.context, self.log, self.calls, looks)
        self.layers = Layers(
            self.context, self.log, self.mode.events, self.mode.collector, exponents
        )
        self.trace = Trace(self.mode.events, self.layers.rows)
        _name_leaves(self.log, runner, micro_batches)

    def run(
        self, until: Stage | None, before: Callable[[], None] | None, stop_when_bad: bool
    ) -> Trace:
        """Trace the rest of the step; the arguments are those of ``trace_step``."""
        last = STAGES.index(until) if until is not None else len(STAGES)
        remove = hook_modules(self.context, self.runner.model, self._after_call)
        self.runner.before_unit = self._before_unit
        if before is not None:
            before()
        try:
            with (
                old_objects_set_aside(),
                threads_seen() as threads,
                stage_marks(self.runner.scaler, self.runner.optimizers, self.context.mark),
                self.calls,
                self.mode,
            ):
                self._advance(last, stop_when_bad)
        finally:
            remove()
            self.runner.before_unit = None
            self.mode.finish()
        self.trace.threads = bool(threads)
        with quiet():
            self.layers.at_end(self.runner)
            self.mode.collector.settle()
            self.trace.contaminated = contaminated(self.runner)
        self.trace.scale = self.runner.values.scale_before
        return self.trace

    def _before_unit(self, unit: Unit) -> None:
        self.context.unit = unit
        if unit.stage == "update":
            with quiet():
                self.layers.before_update(self.runner)

    def _advance(self, last: int, stop_when_bad: bool) -> None:
        while (unit := self.runner.next_unit) is not None and STAGES.index(unit.stage) <= last:
            outcome = self._one_unit()
            self.trace.outcomes.append(outcome)
            if outcome.unit.stage == "loss":
                self.trace.loss_finite &= outcome.status != "bad"
            if outcome.status == "skip" and not self.trace.skips:
                with quiet():
                    self.trace.skips = [self._sink(bad) for bad in outcome.bad]
            if outcome.status != "bad":
                continue
            if outcome.exception is not None:
                self._note_exception(outcome, outcome.exception)
                return
            if not self.trace.sinks:
                with quiet():
                    self.trace.sinks = [self._sink(bad) for bad in outcome.bad]
            if stop_when_bad:
                return

    def _one_unit(self) -> Outcome:
        # gates look at tensors too; what they do is no part of the step
        return self.runner.advance(quiet)

    def _note_exception(self, outcome: Outcome, error: Exception) -> None:
        events = self.trace.graph
        own = events[-1].index if events and events[-1].error is not None else None
        module = module_of_exception(error, self.runner.model)
        if own is not None and events[own].where == "module":
            module = events[own].module
        self.trace.raised = Raised(
            outcome.unit.stage,
            type(error).__name__,
            text_of(error),
            module,
            source_of_exception(error),
            own,
        )

    def _sink(self, bad: gates.BadTensor) -> Sink:
        tensor = find_sink(self.runner, bad)
        counts = (bad.counts.nan, bad.counts.pos_inf, bad.counts.neg_inf)
        if tensor is None:
            return Sink(bad.kind, bad.name, counts, (), None)
        record = self.log.record(tensor)
        producers, remains = self.log.producers(record, region_of(tensor))
        leaf = (record.leaf or ("captured_tensor", bad.name)) if remains else None
        return Sink(bad.kind, bad.name, counts, producers, leaf)

    # -- module ranges ------------------------------------------------------------------------

    def _after_call(self, call: ModuleCall, output: object) -> None:
        with unnumbered():
            for name, tensor in leading_tensors(output):
                plain = unwrapped(tensor)
                if plain is not tensor:
                    with temporarily_clear_interpreter_stack():  # else views are wrapped again
                        self.layers.add(call, "activation", name, plain)
                    continue
                self.layers.add(call, "activation", name, tensor)
                if tensor.requires_grad and self.context.unit.stage in ("forward", "loss"):
                    self._watch_gradient(call, name, tensor)

    def _watch_gradient(self, call: ModuleCall, name: str, tensor: Tensor) -> None:
        def seen(gradient: Tensor) -> None:
            with unnumbered():
                self.layers.add(call, "gradient", name, gradient)

        tensor.register_hook(seen)


def contaminated(runner: StepRunner) -> dict[str, list[str]]:
    """Names of non-finite parameters, buffers and optimizer state as they are now."""

    def names(found: tuple[gates.BadTensor, ...]) -> list[str]:
        return [bad.name.partition(":")[2] for bad in found]

    return {
        "parameters": names(gates.check_parameters(runner.model, runner.held)),
        "buffers": names(gates.check_buffers(runner.model, {})),
        "optimizer_state": names(gates.check_optimizer_state(runner.model, runner.optimizers)),
    }


def _name_leaves(log: StorageLog, runner: StepRunner, micro_batches: Sequence[Any]) -> None:
    for name, parameter in named_parameters(runner.model):
        log.name_leaf(parameter, "poisoned_parameter", name)
    for name, buffer in named_buffers(runner.model):
        log.name_leaf(buffer, "poisoned_buffer", name)
    for path, module in inner_model(runner.model).named_modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):  # a memory or a table that is no buffer
                log.name_leaf(value, "captured_tensor", f"{path}.{name}" if path else name)
    for name, tensor in gates.optimizer_state_tensors(runner.model, runner.optimizers):
        log.name_leaf(tensor, "poisoned_optimizer_state", name.partition(":")[2])
    for name, tensor in scaler_tensors(runner.scaler):
        log.name_leaf(tensor, "captured_tensor", f"scaler.{name}")
    for micro_step, batch in enumerate(micro_batches):
        prefix = f"[{micro_step}]" if len(micro_batches) > 1 else ""
        for name, tensor in batch_leaves(batch, f"batch{prefix}"):
            if isinstance(tensor, np.ndarray):
                start = tensor.__array_interface__["data"][0]
                log.name_memory(start, tensor.nbytes, "poisoned_batch", name)
            else:
                log.name_leaf(tensor, "poisoned_batch", name)


def batch_leaves(tree: Any, path: str = "batch") -> list[tuple[str, Any]]:
    """List the tensors and numpy arrays of a batch with readable paths, ``batch['x'][0]``."""
    if isinstance(tree, torch.Tensor | np.ndarray):
        return [(path, tree)]
    if isinstance(tree, Mapping):
        return [p for k, v in tree.items() for p in batch_leaves(v, f"{path}[{k!r}]")]
    if isinstance(tree, list | tuple):
        return [p for i, v in enumerate(tree) for p in batch_leaves(v, f"{path}[{i}]")]
    if hasattr(tree, "__dict__"):
        return [p for k, v in vars(tree).items() for p in batch_leaves(v, f"{path}.{k}")]
    return []
