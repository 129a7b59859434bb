"""The ranges of a trace: rows at module borders, of parameters, gradients, moments and updates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any, Final

import torch

from workbench.numerics.counts import first_nonfinite
from workbench.numerics.dense import nested_values
from workbench.numerics.exponents import Exponents, exponents
from workbench.numerics.stats import tensor_stats
from workbench.replay.trace_arguments import dtype_text
from workbench.replay.trace_context import ModuleCall
from workbench.replay.trace_events import LayerRow, Write
from workbench.replay.trace_graph import SOURCE
from workbench.replay.trace_plan import floating
from workbench.replay.trace_quiet import DisableTorchDispatch, quiet
from workbench.step import gates
from workbench.step.names import named_parameters

if TYPE_CHECKING:
    from torch import Tensor

    from workbench.numerics.collected import Collector, Late
    from workbench.numerics.stats import TensorStats
    from workbench.replay.trace_context import StepContext
    from workbench.replay.trace_graph import Graph, RawWrite
    from workbench.replay.trace_storage import StorageLog, StorageRecord
    from workbench.step.runner import StepRunner

MOST_UPDATE_BYTES: Final = 1 << 30
"""Parameters larger than this are not copied before the update, so updates have no rows."""


class Layers:
    """Collects the rows of one trace.

    Args:
        context: Where the step is.
        log: Which event wrote what.
        graph: The events so far.
        collector: Takes statistics, also of the ops.
        spread: Whether rows say how magnitudes are spread over exponents, their largest cost.
    """

    def __init__(
        self,
        context: StepContext,
        log: StorageLog,
        graph: Graph,
        collector: Collector,
        spread: bool = True,
    ) -> None:
        self.rows: list[LayerRow] = []
        self._spread = spread
        self._context, self._log, self._graph = context, log, graph
        self._collector = collector
        self._before: dict[str, Tensor] | None = None
        self._last_key: tuple[object, ...] | None = None
        self._last_spread: Exponents | None = None

    def add(self, call: ModuleCall, kind: str, name: str, tensor: Tensor) -> None:
        """Add one tensor as it is now."""
        record = self._log.record(tensor)
        graph = self._graph
        number = record.last
        written = 0 <= number < len(graph)
        stats, first = _known(graph.written(number), record.number, tensor) if written else _UNKNOWN
        if stats is None:
            with DisableTorchDispatch():  # to look at what has a history is an op
                stats = self._collector.quick(tensor)
            if stats is None:
                stats, first = _looked_at(tensor)
        spread = self._spread_of(tensor, record) if self._spread else None
        place = self._context.place
        self.rows.append(
            LayerRow(
                order=call.order,
                module=call.path,
                type=call.kind,
                tensor=kind,
                name=name,
                stage=place.stage,
                micro_step=place.micro_step,
                dtype=dtype_text(tensor),
                shape=tuple(tensor.shape),
                taken=stats,
                event=number,
                source=graph.setting(number)[SOURCE] if written else "",
                op=graph.op(number) if written else "",
                graph=graph,
                absmin=None if spread is None else spread.absmin,
                exponents=() if spread is None else (spread.first, *spread.counts),
                first=first,
            )
        )

    def _spread_of(self, tensor: Tensor, record: StorageRecord) -> Exponents | None:
        """The exponents, taken once of what several modules hand on as it is."""
        key = None
        if record.last >= 0 and tensor.layout is torch.strided:
            written = (record.number, record.version)
            key = (*written, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        if key is not None and key == self._last_key:
            return self._last_spread
        with quiet():
            found = exponents(tensor)
        self._last_key, self._last_spread = key, found
        return found

    def before_update(self, runner: StepRunner) -> None:
        """Copy the parameters right before the update, where that is not too much."""
        if self._before is not None:
            return
        found = dict(named_parameters(runner.model))
        size = sum(p.numel() * p.element_size() for p in found.values())
        if size <= MOST_UPDATE_BYTES:
            self._before = {name: p.detach().clone() for name, p in found.items()}

    def at_end(self, runner: StepRunner) -> None:
        """Add parameters, their gradients, the optimizer's moments and what the update did."""
        order = self._context.calls
        updated = any(one.updated for one in runner.values.optimizer_records)
        for name, parameter in named_parameters(runner.model):
            call = ModuleCall(name.rpartition(".")[0], "", order)
            order += 1
            self.add(call, "parameter", name, parameter)
            if parameter.grad is not None:
                self.add(call, "parameter_gradient", name, parameter.grad)
            if updated and self._before is not None and name in self._before:
                self.add(call, "update", name, parameter.detach() - self._before[name])
        for full, tensor in gates.optimizer_state_tensors(runner.model, runner.optimizers):
            name = full.partition(":")[2]
            if floating(tensor) and tensor.dim():
                call = ModuleCall(name.partition("/")[0].rpartition(".")[0], "", order)
                order += 1
                self.add(call, "moment", name, tensor)


def leading_tensors(output: object) -> list[tuple[str, Tensor]]:
    """List the floating tensors in a module's output, at most eight."""
    if isinstance(output, torch.Tensor):
        output = nested_values(output) if output.is_nested else output
        return [("out", output)] if floating(output) else []
    items: list[Any] = []
    if isinstance(output, list | tuple):
        items = list(enumerate(output))
    elif isinstance(output, Mapping):
        items = list(output.items())
    return [
        (f"out.{key}", value)
        for key, value in items
        if isinstance(value, torch.Tensor) and floating(value)
    ][:8]


def _looked_at(tensor: Tensor) -> tuple[TensorStats, tuple[int, ...] | None]:
    """Statistics of any tensor, and the index of its first non-finite element."""
    with quiet():
        stats = tensor_stats(tensor)
        found = first_nonfinite(tensor) if stats.nonfinite else None
    return stats, None if found is None else tuple(found)


Known = tuple["TensorStats | Late | None", tuple[int, ...] | None]
_UNKNOWN: Final[Known] = (None, None)


def _known(writes: Iterable[RawWrite | Write], storage: int, tensor: Tensor) -> Known:
    """Statistics, and the first non-finite index, that were taken when a tensor was written."""
    for write in writes:
        if isinstance(write, Write):
            if write.storage == storage and prod(write.shape) == tensor.numel():
                return write.taken, write.first
        elif write[1] == storage and prod(write[4]) == tensor.numel():
            return write[2], None
    return _UNKNOWN
