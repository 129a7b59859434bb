"""The dispatch mode that records one event per executed aten op.

It changes nothing the step computes: arguments pass through, statistics are taken of what ops
wrote, below autograd and with autocast out of the way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from workbench.numerics.stats import TensorStats, tensor_stats
from workbench.replay.calls import CallMode, unnumbered
from workbench.replay.trace_arguments import (
    arguments,
    as_float,
    bad_positions,
    cloned,
    dtype_text,
    list_elements,
    tensors_in,
)
from workbench.replay.trace_context import SourceFinder, StepContext
from workbench.replay.trace_events import Event, KeptEvent, Read, Write
from workbench.replay.trace_plan import OpPlan, floating, plan_of
from workbench.replay.trace_storage import StorageLog, exact_counts, region_of
from workbench.step.values import text_of

if TYPE_CHECKING:
    from torch import Tensor


_AUTOCAST_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | (
    torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
)

_DisableTorchDispatch = torch._C._DisableTorchDispatch
_ExcludeKeys = torch._C._ExcludeDispatchKeyGuard


@contextmanager
def quiet() -> Iterator[None]:
    """Run our own tensor arithmetic unseen: no modes, no autocast, no autograd."""
    with (
        unnumbered(),
        _DisableTorchDispatch(),
        _ExcludeKeys(_AUTOCAST_KEYS),
        torch.no_grad(),
    ):
        yield


class TraceMode(TorchDispatchMode):
    """Records events while it is active.

    Args:
        context: Stage and module position, kept up to date by the caller.
        log: The storages' write log.
        calls: Numbers the torch function calls.
        keep: Numbers of events whose real arguments are to be kept.
    """

    def __init__(
        self,
        context: StepContext,
        log: StorageLog,
        calls: CallMode,
        keep: Collection[int] = (),
    ) -> None:
        super().__init__()
        self.calls = calls
        self.context = context
        self.log = log
        self.events: list[Event] = []
        self.kept: dict[int, KeptEvent] = {}
        self._keep = frozenset(keep)
        self._owners: dict[int, int] = {}
        self._graph_tasks: dict[int, bool] = {}
        self._sources = SourceFinder()
        self._calls = 0
        self._inputs: dict[tuple[int, str], Tensor] = {}

    # -- dispatch -----------------------------------------------------------------------------

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        kwargs = kwargs or {}
        plan = plan_of(func)
        if plan.name.startswith(("profiler.", "prim.device")):
            return func(*args, **kwargs)
        with unnumbered():  # within backward the numbering mode is on in here
            return self._record(func, plan, args, kwargs)

    def _record(
        self,
        func: Any,
        plan: OpPlan,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        given = arguments(plan, args, kwargs)
        parts = list_elements(plan, given)
        first = len(self.events)
        events = [self._new_event(plan, first + number) for number in range(len(parts))]
        self._calls += 1
        # autograd and the mode itself are out of the way already in here
        with _DisableTorchDispatch(), _ExcludeKeys(_AUTOCAST_KEYS):
            for event, part in zip(events, parts, strict=True):
                self._note_reads(event, plan, part)
            kept = self._keep_inputs(func, plan, events, args, kwargs)
        self.events += events
        try:
            out = func(*args, **kwargs)
        except Exception as error:
            events[0].error = f"{type(error).__name__}: {text_of(error)}"
            raise
        with _DisableTorchDispatch(), _ExcludeKeys(_AUTOCAST_KEYS):
            self._note_results(plan, events, parts, out)
            if kept is not None:
                kept.outputs = [t.detach().clone() for _, t in tensors_in("out", out)]
        self._inputs.clear()
        return out

    def _new_event(self, plan: OpPlan, index: int) -> Event:
        context = self.context
        source, in_loss, in_engine = self._sources.find()
        event = Event(
            index=index,
            call=self._calls,
            op=plan.name,
            base=plan.base,
            stage=context.stage,
            phase=context.unit.phase,
            micro_step=context.unit.micro_step,
            where=context.where,
            module=context.module,
            in_loss=in_loss or context.unit.stage == "loss",
            source=source,
            view=plan.view,
            uninitialised=plan.uninitialised,
            fills_constant=plan.fills_constant,
            function_call=self.calls.current,
            function=self.calls.name,
        )
        self._link_to_graph(event, in_engine)
        return event

    def _link_to_graph(self, event: Event, in_engine: bool) -> None:
        """Tie a backward op to its forward op by autograd's sequence numbers (DESIGN rule 5)."""
        node: Any = torch._C._current_autograd_node()
        number = torch._C._autograd._get_sequence_nr() - 1
        if node is None:
            self._owners.setdefault(number, event.index)
            return
        task = torch._C._current_graph_task_id()
        grad_mode = torch.is_grad_enabled()
        base = self._graph_tasks.setdefault(task, grad_mode)
        if grad_mode and not base:
            event.recomputed = True
            self._owners.setdefault(number, event.index)
            return
        event.node = node.name().rpartition("::")[2]
        event.user_code = not in_engine
        event.sequence = node._sequence_nr()
        if grad_mode:  # create_graph: this op makes nodes of its own
            self._owners.setdefault(number, event.index)
        owner = self._owners.get(event.sequence)
        if owner is None or owner == event.index:
            return
        forward = self.events[owner] if owner < len(self.events) else None
        if forward is None:
            return
        event.forward_event = owner
        event.where, event.module = forward.where, forward.module
        event.in_loss = forward.in_loss
        if not event.user_code:  # a hook or a custom backward has a line of its own
            event.source = forward.source or event.source

    # -- reads --------------------------------------------------------------------------------

    def _note_reads(self, event: Event, plan: OpPlan, part: list[tuple[str, Any]]) -> None:
        scalars = []
        for name, value in part:
            if isinstance(value, float | int) and not isinstance(value, bool):
                scalars.append((name, as_float(value)))
            else:
                for label, tensor in tensors_in(name, value):
                    event.reads.append(self._read(event, plan, name, label, tensor))
        event.scalars = tuple(scalars)

    def _read(self, event: Event, plan: OpPlan, name: str, label: str, tensor: Tensor) -> Read:
        record = self.log.record(tensor)
        used = name not in plan.unread and not plan.view
        strided = tensor.layout == torch.strided
        producers: tuple[int, ...] = ()
        remains = True
        if strided and tensor.device.type != "meta":
            producers, remains = self.log.producers(record, region_of(tensor))
        elif record.writes:
            producers, remains = (record.writes[-1][0],), False
        leaf = None
        if remains:
            leaf = record.leaf or ("captured_tensor", f"tensor seen at {self._sources.find()[0]}")
        counts = self.log.counts(record, tensor) if used else (0, 0, 0)
        if used and floating(tensor) and name not in plan.written:
            self._inputs[event.index, label] = tensor
        undefined = any(counts) and record.uninitialised in producers
        if undefined and self.log.changed_unseen(record, tensor):
            event.unseen += (label,)
        return Read(
            label,
            record.number,
            producers,
            leaf,
            counts,
            str(tensor.dtype).removeprefix("torch."),
            tuple(tensor.shape),
            used,
        )

    def _keep_inputs(
        self,
        func: Any,
        plan: OpPlan,
        events: list[Event],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> KeptEvent | None:
        if not self._keep or not any(event.index in self._keep for event in events):
            return None
        kept = KeptEvent(
            events[0].index,
            func,
            tuple(cloned(value) for value in args),
            {name: cloned(value) for name, value in kwargs.items()},
            plan.arguments,
        )
        for event in events:
            self.kept[event.index] = kept
        return kept

    # -- writes -------------------------------------------------------------------------------

    def _note_results(
        self,
        plan: OpPlan,
        events: list[Event],
        parts: list[list[tuple[str, Any]]],
        out: Any,
    ) -> None:
        if plan.view:
            return
        for event, part in zip(events, parts, strict=True):
            written = [
                pair
                for name, value in part
                if name in plan.written
                for pair in tensors_in(name, value)
            ]
            for name, tensor in written:
                self._write(event, name, tensor)
        if plan.written and not plan.collective:
            return  # what an in-place op returns is what it wrote
        outputs = list(tensors_in("out", out))
        if len(events) > 1 and len(outputs) == len(events):
            for event, (_, tensor) in zip(events, outputs, strict=True):
                self._write(event, "out0", tensor)
            return
        for number, (_, tensor) in enumerate(outputs):
            if plan.uninitialised:
                self._created(events[-1], tensor)
            else:
                self._write(events[-1], f"out{number}", tensor)

    def _created(self, event: Event, tensor: Tensor) -> None:
        record = self.log.record(tensor)
        self.log.created_undefined(record, event.index, tensor)
        event.writes.append(
            Write("out0", record.number, None, dtype_text(tensor), tuple(tensor.shape))
        )

    def _write(self, event: Event, slot: str, tensor: Tensor) -> None:
        record = self.log.record(tensor)
        stats: TensorStats | None = None
        if floating(tensor) and tensor.device.type != "meta":
            stats = tensor_stats(tensor)
        write = Write(slot, record.number, stats, dtype_text(tensor), tuple(tensor.shape))
        if write.bad:
            write.first, write.samples = bad_positions(tensor)
            self._verify_inputs(event)
            event.absorbs_some |= self._absorbs_some(event, write, tensor)
        self.log.wrote(record, event.index, tensor, finite=not write.bad)
        event.writes.append(write)

    def _verify_inputs(self, event: Event) -> None:
        """On a birth, look at the inputs again: something outside may have written to them."""
        if event.bad_reads or event.unseen:
            return
        unseen = []
        for read in event.reads:
            tensor = self._inputs.get((event.index, read.argument))
            if tensor is None or any(read.counts):
                continue
            counts = exact_counts(tensor)
            if any(counts):
                read.counts = counts
                unseen.append(read.argument)
        event.unseen = tuple(unseen)

    def _absorbs_some(self, event: Event, write: Write, out: Tensor) -> bool:
        """Whether an op that made NaN of some Infs turned others into finite values."""
        if not write.counts[0]:
            return False
        for read in event.bad_reads:
            tensor = self._inputs.get((event.index, read.argument))
            if tensor is None or tensor.shape != out.shape or read.counts[0]:
                continue
            if bool((torch.isinf(tensor) & torch.isfinite(out)).any()):
                return True
        return False
