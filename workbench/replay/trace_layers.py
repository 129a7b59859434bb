"""The ranges of a trace: rows at module borders, of parameters, gradients, moments and updates."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any, Final

import torch

from workbench.numerics.counts import first_nonfinite
from workbench.numerics.exponents import exponents
from workbench.numerics.stats import tensor_stats
from workbench.replay.trace_arguments import dtype_text
from workbench.replay.trace_context import ModuleCall
from workbench.replay.trace_events import LayerRow
from workbench.replay.trace_plan import floating
from workbench.step import gates
from workbench.step.names import named_parameters

if TYPE_CHECKING:
    from torch import Tensor

    from workbench.replay.trace_context import StepContext
    from workbench.replay.trace_events import Event, Write
    from workbench.replay.trace_storage import StorageLog
    from workbench.step.runner import StepRunner

MOST_UPDATE_BYTES: Final = 1 << 30
"""Parameters larger than this are not copied before the update, so updates have no rows."""


class Layers:
    """Collects the rows of one trace.

    Args:
        context: Where the step is.
        log: Which event wrote what.
        graph: The events so far.
        spread: Whether rows say how magnitudes are spread over exponents, their largest cost.
    """

    def __init__(
        self, context: StepContext, log: StorageLog, graph: list[Event], spread: bool = True
    ) -> None:
        self.rows: list[LayerRow] = []
        self._spread = spread
        self._context, self._log, self._graph = context, log, graph
        self._before: dict[str, Tensor] | None = None

    def add(self, call: ModuleCall, kind: str, name: str, tensor: Tensor) -> None:
        """Add one tensor as it is now."""
        record = self._log.record(tensor)
        number = record.writes[-1][0] if record.writes else -1
        event = self._graph[number] if 0 <= number < len(self._graph) else None
        known = _known_write(event, record.number, tensor)
        stats = known.taken if known is not None else None
        first = known.first if known is not None else None
        if stats is None:
            stats = tensor_stats(tensor)
            found = first_nonfinite(tensor) if stats.nonfinite else None
            first = None if found is None else tuple(found)
        spread = exponents(tensor) if self._spread else None
        self.rows.append(
            LayerRow(
                order=call.order,
                module=call.path,
                type=call.kind,
                tensor=kind,
                name=name,
                stage=self._context.place.stage,
                micro_step=self._context.place.micro_step,
                dtype=dtype_text(tensor),
                shape=tuple(tensor.shape),
                taken=stats,
                event=number,
                source=event.source if event is not None else "",
                op=event.op if event is not None else "",
                graph=self._graph,
                absmin=None if spread is None else spread.absmin,
                exponents=() if spread is None else (spread.first, *spread.counts),
                first=first,
            )
        )

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


def _known_write(event: Event | None, storage: int, tensor: Tensor) -> Write | None:
    if event is None:
        return None
    for write in event.writes:
        if write.storage == storage and prod(write.shape) == tensor.numel():
            return write
    return None
