"""The dispatch mode that records one event per executed aten op.

It changes nothing the step computes: arguments pass through, statistics are taken of what ops
wrote, below autograd and with autocast out of the way. It runs once for every op, so that what can
be worked out once (an op's plan, a position in the step, a source line) is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from workbench.numerics.collected import Collector
from workbench.numerics.dense import PLAIN
from workbench.replay.calls import CallMode, unnumbered
from workbench.replay.trace_arguments import (
    DTYPE_NAMES,
    arguments,
    as_float,
    bad_positions,
    cloned,
    dtype_text,
    list_elements,
    tensors_in,
)
from workbench.replay.trace_bad import (
    Part,
    absorbs_some,
    verify_inputs,
    written_besides,
    written_in_place,
)
from workbench.replay.trace_context import SourceFinder, StepContext
from workbench.replay.trace_events import Event, KeptEvent, Read, Write
from workbench.replay.trace_plan import PLANS, OpPlan, floating
from workbench.replay.trace_storage import (
    FINITE,
    StorageLog,
    StorageRecord,
    Triple,
    region_of,
)
from workbench.step.values import text_of

if TYPE_CHECKING:
    from torch import Tensor

_AUTOCAST_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | (
    torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
)

_DisableTorchDispatch = torch._C._DisableTorchDispatch
_ExcludeKeys = torch._C._ExcludeDispatchKeyGuard
_current_node = torch._C._current_autograd_node
_current_task = torch._C._current_graph_task_id
_sequence_number = torch._C._autograd._get_sequence_nr
_NO_TENSOR: Final = frozenset(
    {type(None), bool, str, torch.dtype, torch.device, torch.layout, torch.memory_format}
)


class quiet(AbstractContextManager[None]):  # used like the functions of contextlib
    """Run our own tensor arithmetic unseen: no modes, no autocast, no autograd."""

    __slots__ = ("_guards",)

    def __enter__(self) -> None:
        """Put the guards up; a generator's frame would cost more than they do."""
        self._guards = guards = (
            unnumbered(),
            _DisableTorchDispatch(),
            _ExcludeKeys(_AUTOCAST_KEYS),
            torch.no_grad(),
        )
        for guard in guards:
            guard.__enter__()

    def __exit__(self, *error: object) -> None:
        """Take them down in reverse order."""
        for guard in reversed(self._guards):
            guard.__exit__(None, None, None)


class TraceMode(TorchDispatchMode):
    """Records events while it is active.

    Args:
        context: Stage and module position, kept up to date by the caller.
        log: The storages' write log.
        calls: Numbers the torch function calls.
        keep: Numbers of events whose real arguments are to be kept.
        looks: Says by module and stage of which events the tensors are looked at; of the others
            only the dataflow is noted. None looks at all.
    """

    def __init__(
        self,
        context: StepContext,
        log: StorageLog,
        calls: CallMode,
        keep: Collection[int] = (),
        looks: Callable[[str, str], bool] | None = None,
    ) -> None:
        super().__init__()
        self.calls = calls
        self.context = context
        self.log = log
        self.events: list[Event] = []
        self.kept: dict[int, KeptEvent] = {}
        self._keep = frozenset(keep)
        self._looks = looks
        self._owners: dict[int, int] = {}
        self._graph_tasks: dict[int, bool] = {}
        self._node_names: dict[str, str] = {}
        self._sources = SourceFinder()
        self._collector = Collector()
        self._calls = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # compiled modules run eagerly while a step is traced, so that nothing here is compiled;
        # the wrapper that would see to it costs as much as a small op
        return False

    def finish(self) -> None:
        """Work out the statistics that wait, and let go of the step's frames."""
        self._collector.settle()
        self._sources.release()

    # -- dispatch -----------------------------------------------------------------------------

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        plan = PLANS[func]
        if plan.ignored:
            return func(*args, **(kwargs or {}))
        with unnumbered():  # within backward the numbering mode is on in here
            return self._record(func, plan, args, kwargs or {})

    def _record(
        self,
        func: Any,
        plan: OpPlan,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        given = arguments(plan, args, kwargs)
        parts = list_elements(plan, given) if plan.elementwise_lists else [given]
        events = self._new_events(plan, len(parts))
        looks = self._looks
        looked = looks is None or looks(events[0].module, events[0].stage)
        for event, part in zip(events, parts, strict=True):
            self._note_reads(event, plan, part, looked)
        kept = self._keep_inputs(func, plan, events, args, kwargs) if self._keep else None
        self.events += events
        try:
            out = func(*args, **kwargs)
        except Exception as error:
            events[0].error = f"{type(error).__name__}: {text_of(error)}"
            raise
        if plan.view and kept is None:
            return out
        # autograd and the mode itself are out of the way already in here
        with _DisableTorchDispatch(), _ExcludeKeys(_AUTOCAST_KEYS):
            self._note_results(plan, events, parts, out, looked)
            if kept is not None:
                kept.outputs = [t.detach().clone() for _, t in tensors_in("out", out)]
                if plan.makes_new:
                    kept.written = written_besides(plan, given)
                if not kept.outputs:  # a list op that writes in place returns nothing
                    kept.outputs = written_in_place(plan, parts)
        return out

    def _new_events(self, plan: OpPlan, count: int) -> list[Event]:
        """Make the events of one call, which differ in what they read and write only."""
        first = len(self.events)
        where: str
        stage, phase, micro_step, where, module, in_loss = self.context.place
        owner, user_code, recomputed = None, False, False
        name, sequence = None, -1
        source, loss_frame, in_engine = self._sources.find(4)
        in_loss = in_loss or loss_frame
        node: Any = _current_node()
        if node is None:
            self._owners.setdefault(_sequence_number() - 1, first)
        elif self._recomputes():
            recomputed = True
            self._owners.setdefault(_sequence_number() - 1, first)
            origin = self._owner(node._sequence_nr())
            if origin is not None and not self.context.modules:
                # outside of any module call it is where the checkpointed forward was
                where, module, in_loss = origin.where, origin.module, origin.in_loss
        else:
            name, user_code = self._short(node.name()), not in_engine
            sequence = node._sequence_nr()
            origin = self._owner(sequence)
            if torch.is_grad_enabled():  # create_graph: this op makes nodes of its own
                self._owners.setdefault(_sequence_number() - 1, first)
            if origin is not None:
                owner = origin.index
                where, module, in_loss = origin.where, origin.module, origin.in_loss
                if not user_code:  # a hook or a custom backward has a line of its own
                    source = origin.source or source
        common = (
            self._calls, plan.name, plan.base, stage, phase, micro_step,
            where, module, in_loss, source, name, sequence, owner, recomputed, user_code,
            self.calls.current, self.calls.name,
        )  # fmt: skip
        flags = ((), plan.view, plan.uninitialised, plan.fills_constant)
        self._calls += 1
        if count == 1:
            return [Event(first, *common, [], [], *flags)]
        return [Event(first + number, *common, [], [], *flags) for number in range(count)]

    def _recomputes(self) -> bool:
        """Whether an op within backward repeats a checkpointed forward (DESIGN rule 5)."""
        grad_mode = torch.is_grad_enabled()
        began_with = self._graph_tasks.setdefault(_current_task(), grad_mode)
        return grad_mode and not began_with

    def _owner(self, sequence: int) -> Event | None:
        """The forward event whose autograd node has a sequence number."""
        owner = self._owners.get(sequence)
        return self.events[owner] if owner is not None and owner < len(self.events) else None

    def _short(self, name: str) -> str:
        short = self._node_names.get(name)
        if short is None:
            short = self._node_names[name] = name.rpartition("::")[2]
        return short

    # -- reads --------------------------------------------------------------------------------

    def _note_reads(self, event: Event, plan: OpPlan, part: Part, looked: bool) -> None:
        scalars = []
        reads = event.reads
        for name, value in part:
            kind = type(value)
            if kind in PLAIN:
                reads.append(self._read(event, plan, name, name, value, looked))
            elif kind in _NO_TENSOR:
                continue
            elif isinstance(value, float | int):
                scalars.append((name, as_float(value)))
            else:
                for label, tensor in tensors_in(name, value):
                    reads.append(self._read(event, plan, name, label, tensor, looked))
        if looked and scalars:
            event.scalars = tuple(scalars)

    def _read(
        self, event: Event, plan: OpPlan, name: str, label: str, tensor: Tensor, looked: bool
    ) -> Read:
        record = self.log.record(tensor)
        producers = record.sole
        if producers is None:
            producers, remains = self.log.producers(record, region_of(tensor))
        else:
            remains = not producers
        dtype, shape = DTYPE_NAMES[tensor.dtype], tuple(tensor.shape)
        if not looked:
            return Read(label, record.number, producers, None, FINITE, dtype, shape, False)
        leaf = None
        if remains:
            leaf = record.leaf or ("captured_tensor", f"tensor seen at {self._sources.find()[0]}")
        used = not plan.view and name not in plan.unread
        counts = FINITE
        if used and not record.clean:
            counts = self._counts(record, tensor)
            undefined = counts != FINITE and record.uninitialised in producers
            if undefined and self._changed_unseen(record, tensor):
                event.unseen += (label,)
        return Read(label, record.number, producers, leaf, counts, dtype, shape, used)

    def _counts(self, record: StorageRecord, tensor: Tensor) -> Triple:
        with _DisableTorchDispatch(), _ExcludeKeys(_AUTOCAST_KEYS):
            return self.log.counts(record, tensor)

    def _changed_unseen(self, record: StorageRecord, tensor: Tensor) -> bool:
        with _DisableTorchDispatch(), _ExcludeKeys(_AUTOCAST_KEYS):
            return self.log.changed_unseen(record, tensor)

    def _keep_inputs(
        self,
        func: Any,
        plan: OpPlan,
        events: list[Event],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> KeptEvent | None:
        if not any(event.index in self._keep for event in events):
            return None
        with _DisableTorchDispatch(), _ExcludeKeys(_AUTOCAST_KEYS):
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
        self, plan: OpPlan, events: list[Event], parts: Sequence[Part], out: Any, looked: bool
    ) -> None:
        if plan.view:
            return
        if plan.written:
            for event, part in zip(events, parts, strict=True):
                for name, value in part:
                    if name in plan.written:
                        for label, tensor in tensors_in(name, value):
                            self._write(event, plan, part, label, tensor, looked)
            if not (plan.makes_new or plan.collective):
                return  # what an in-place op returns is what it wrote
        if type(out) in PLAIN and not plan.uninitialised:
            self._write(events[-1], plan, parts[-1], "out0", out, looked)
            return
        outputs = [out] if type(out) in PLAIN else [tensor for _, tensor in tensors_in("out", out)]
        if len(events) > 1 and len(outputs) == len(events):
            for event, part, tensor in zip(events, parts, outputs, strict=True):
                self._write(event, plan, part, "out0", tensor, looked)
            return
        for number, tensor in enumerate(outputs):
            if plan.uninitialised:
                self._created(events[-1], tensor)
            else:
                self._write(events[-1], plan, parts[-1], f"out{number}", tensor, looked)

    def _created(self, event: Event, tensor: Tensor) -> None:
        record = self.log.record(tensor)
        self.log.created_undefined(record, event.index, tensor)
        event.writes.append(
            Write("out0", record.number, None, dtype_text(tensor), tuple(tensor.shape))
        )

    def _write(
        self, event: Event, plan: OpPlan, part: Part, slot: str, tensor: Tensor, looked: bool
    ) -> None:
        record = self.log.record(tensor)
        known_finite = not floating(tensor)
        stats = None
        if looked:
            if not (known_finite or tensor.is_meta):
                stats = self._collector.take(tensor)
            known_finite = True
        dtype, shape = DTYPE_NAMES[tensor.dtype], tuple(tensor.shape)
        write = Write(slot, record.number, stats, dtype, shape)
        if write.bad:
            known_finite = False
            write.first, write.samples = bad_positions(tensor)
            verify_inputs(event, plan, part)
            event.absorbs_some |= absorbs_some(event, plan, part, write, tensor)
        # what nobody looked at is not known to be finite: whoever reads it within a part counts it
        self.log.wrote(record, event.index, tensor, finite=known_finite)
        event.writes.append(write)
