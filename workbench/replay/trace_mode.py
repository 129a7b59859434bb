"""The dispatch mode that records one event per executed aten op.

It changes nothing the step computes: arguments pass through, statistics are taken of what ops
wrote, below autograd and with autocast out of the way. It runs once for every op, so that what can
be worked out once (an op's plan, a position in the step, a source line) is.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import _getframe
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode

from workbench.numerics.collected import Collector, Late
from workbench.numerics.dense import PLAIN
from workbench.replay.calls import CallMode, unnumbered
from workbench.replay.trace_arguments import (
    DTYPE_NAMES,
    arguments,
    as_float,
    bad_positions,
    list_elements,
    tensors_in,
)
from workbench.replay.trace_bad import (
    absorbs_some,
    verify_inputs,
)
from workbench.replay.trace_context import StepContext
from workbench.replay.trace_events import Write
from workbench.replay.trace_graph import MODULE, STAGE, Graph, RawRead, Scalars, Setting
from workbench.replay.trace_place import Places
from workbench.replay.trace_plan import FLOATING, PLANS_AT, OpPlan, plan_at
from workbench.replay.trace_quiet import AUTOCAST_KEYS, DisableTorchDispatch, ExcludeKeys
from workbench.replay.trace_storage import (
    FINITE,
    StorageLog,
    StorageRecord,
    Triple,
    region_of,
)
from workbench.step.values import text_of

if TYPE_CHECKING:
    from workbench.numerics.stats import TensorStats

_NO_TENSOR: Final = frozenset(
    {type(None), bool, str, torch.dtype, torch.device, torch.layout, torch.memory_format}
)


_known_plan = PLANS_AT.get

Given = list[tuple[str, Any]] | tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of an event, named or as the op got them."""


class TraceMode(TorchDispatchMode):
    """Records events while it is active.

    Args:
        context: Stage and module position, kept up to date by the caller.
        log: The storages' write log.
        calls: Numbers the torch function calls.
        looks: Says by module and stage of which events the tensors are looked at; of the others
            only the dataflow is noted. None looks at all.
    """

    def __init__(
        self,
        context: StepContext,
        log: StorageLog,
        calls: CallMode,
        looks: Callable[[str, str], bool] | None = None,
    ) -> None:
        super().__init__()
        self.log = log
        self.events = Graph()
        self._looks = looks
        self._places = Places(context, self.events)
        self._numbering = calls
        self._calls = 0
        self._known = log.by_address.get
        self.collector = Collector()
        self._unseen: list[str] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # compiled modules run eagerly while a step is traced, so that nothing here is compiled;
        # the wrapper that would see to it costs as much as a small op
        return False

    def finish(self) -> None:
        """Work out the statistics that wait, and let go of the step's frames."""
        self.collector.settle()
        self._places.release()

    # -- dispatch -----------------------------------------------------------------------------

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        plan = _known_plan(id(func)) or plan_at(func)
        if plan.ignored:
            return func(*args, **(kwargs or {}))
        if kwargs is None:
            kwargs = {}
        with unnumbered():  # within backward the numbering mode is on in here
            setting = self._places.setting(_getframe(1))
            call = self._calls
            self._calls = call + 1
            function = self._numbering.running
            looks = self._looks
            looked = looks is None or looks(setting[MODULE], setting[STAGE])
            if not plan.gives_new:
                record = self._record_list if plan.elementwise_lists else self._record_one
                return record(plan, args, kwargs, looked, (setting, call, function))
            reads, scalars = self._reads(plan, args, kwargs, looked)
            events = self.events
            number = len(events)
            try:
                out = plan.run(*args, **kwargs)
            except Exception as error:
                events.add((plan, setting, call, function, reads, [], scalars))
                events[number].error = f"{type(error).__name__}: {text_of(error)}"
                raise
            if looked and type(out) is Tensor:
                dtype = out.dtype
                stats = self.collector.fresh(out, dtype)
                if stats is not None and not self._unseen:  # as nearly always
                    write = ("out0", self.log.made(out, number), stats, dtype, out.shape)
                    events.add((plan, setting, call, function, reads, (write,), scalars))
                    return out
            events.add((plan, setting, call, function, reads, [], scalars))
            if self._unseen:
                self._note_unseen(number)
            self._note_one(plan, number, args, kwargs, out, looked)
            return out

    def _record_one(
        self,
        plan: OpPlan,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        looked: bool,
        about: tuple[Setting, int, tuple[int, str]],
    ) -> Any:
        """Record an op that is one event and does not only make something new."""
        reads, scalars = self._reads(plan, args, kwargs, looked)
        events = self.events
        number = len(events)
        events.add((plan, *about, reads, () if plan.view else [], scalars))
        if self._unseen:
            self._note_unseen(number)
        try:
            out = plan.run(*args, **kwargs)
        except Exception as error:
            events[number].error = f"{type(error).__name__}: {text_of(error)}"
            raise
        if not plan.view:
            self._note_one(plan, number, args, kwargs, out, looked)
        return out

    def _note_one(
        self,
        plan: OpPlan,
        number: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        looked: bool,
    ) -> None:
        """Note what an op that is one event wrote."""
        if plan.gives_new and type(out) in PLAIN:
            self._write(number, plan, (args, kwargs), "out0", out, looked)
        else:
            self._note_results(plan, number, [arguments(plan, args, kwargs)], out, looked)

    def _record_list(
        self,
        plan: OpPlan,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        looked: bool,
        about: tuple[Setting, int, tuple[int, str]],
    ) -> Any:
        """Record a list op: one event for each element."""
        parts = list_elements(plan, arguments(plan, args, kwargs))
        first = len(self.events)
        for number, part in enumerate(parts, first):
            reads, scalars = self._reads(plan, (), dict(part), looked)
            self.events.add((plan, *about, reads, [], scalars))
            if self._unseen:
                self._note_unseen(number)
        try:
            out = plan.run(*args, **kwargs)
        except Exception as error:
            self.events[first].error = f"{type(error).__name__}: {text_of(error)}"
            raise
        if not plan.view:
            self._note_results(plan, first, parts, out, looked)
        return out

    # -- reads --------------------------------------------------------------------------------

    def _reads(
        self, plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any], looked: bool
    ) -> tuple[list[RawRead], Scalars]:
        """What an op is about to read: tensors, and single numbers."""
        reads: list[RawRead] = []
        scalars: list[tuple[str, float]] = []
        known = self._known
        for (name, used), value in zip(plan.by_position, args, strict=False):
            kind = type(value)
            if kind is not Tensor and kind is not Parameter:
                if name and kind not in _NO_TENSOR:
                    self._read_other(name, value, used, looked, reads, scalars)
                continue
            try:
                record = known(value.untyped_storage()._cdata)
            except (NotImplementedError, RuntimeError):
                record = None
            if record is not None and looked:
                held = record.held
                if held is not None:  # as nearly always
                    reads.append((name, held, value.dtype, value.shape, used))
                    continue
            reads.append(self._read(name, value, used, looked))
        for name, value in kwargs.items():
            if type(value) not in _NO_TENSOR:
                used = plan.by_name.get(name, not plan.view)
                self._read_other(name, value, used, looked, reads, scalars)
        return reads, tuple(scalars) if looked and scalars else ()

    def _read_other(
        self,
        name: str,
        value: Any,
        used: bool,
        looked: bool,
        reads: list[RawRead],
        scalars: list[tuple[str, float]],
    ) -> None:
        if isinstance(value, float | int):
            scalars.append((name, as_float(value)))
            return
        for label, tensor in tensors_in(name, value):
            reads.append(self._read(label, tensor, used, looked))

    def _read(self, label: str, tensor: Tensor, used: bool, looked: bool) -> RawRead:
        record = self.log.record(tensor)
        producers = record.sole
        if producers is None:
            producers, remains = self.log.producers(record, region_of(tensor))
        else:
            remains = not producers
        dtype = tensor.dtype
        if not looked:
            return label, (record.number, producers, None, FINITE), dtype, tensor.shape, False
        leaf = None
        if remains:
            leaf = record.leaf or ("captured_tensor", f"tensor seen at {self._places.source()}")
        counts = FINITE
        if used and not record.clean:
            counts = self._counts(record, tensor)
            undefined = counts != FINITE and record.uninitialised in producers
            if undefined and self._changed_unseen(record, tensor):
                self._unseen.append(label)
        return label, (record.number, producers, leaf, counts), dtype, tensor.shape, used

    def _note_unseen(self, number: int) -> None:
        self.events[number].unseen = tuple(self._unseen)
        self._unseen.clear()

    def _counts(self, record: StorageRecord, tensor: Tensor) -> Triple:
        with DisableTorchDispatch(), ExcludeKeys(AUTOCAST_KEYS):
            return self.log.counts(record, tensor)

    def _changed_unseen(self, record: StorageRecord, tensor: Tensor) -> bool:
        with DisableTorchDispatch(), ExcludeKeys(AUTOCAST_KEYS):
            return self.log.changed_unseen(record, tensor)

    # -- writes -------------------------------------------------------------------------------

    def _note_results(
        self, plan: OpPlan, first: int, parts: list[list[tuple[str, Any]]], out: Any, looked: bool
    ) -> None:
        if plan.written:
            for number, part in enumerate(parts, first):
                for name, value in part:
                    if name in plan.written:
                        for label, tensor in tensors_in(name, value):
                            self._write(number, plan, part, label, tensor, looked)
            if not (plan.makes_new or plan.collective):
                return  # what an in-place op returns is what it wrote
        outputs = [out] if type(out) in PLAIN else [tensor for _, tensor in tensors_in("out", out)]
        if len(parts) > 1 and len(outputs) == len(parts):
            for number, (part, tensor) in enumerate(zip(parts, outputs, strict=True), first):
                self._write(number, plan, part, "out0", tensor, looked)
            return
        last = first + len(parts) - 1
        for position, tensor in enumerate(outputs):
            if plan.uninitialised:
                self._created(last, tensor)
            else:
                self._write(last, plan, parts[-1], f"out{position}", tensor, looked)

    def _created(self, number: int, tensor: Tensor) -> None:
        record = self.log.record(tensor)
        with DisableTorchDispatch(), ExcludeKeys(AUTOCAST_KEYS):
            self.log.created_undefined(record, number, tensor)
        self.events.wrote(number, ("out0", record.number, None, tensor.dtype, tensor.shape))

    def _write(
        self, number: int, plan: OpPlan, given: Given, slot: str, tensor: Tensor, looked: bool
    ) -> None:
        dtype = tensor.dtype
        finite = not FLOATING[dtype]
        stats: TensorStats | Late | None = None
        if looked and not finite:
            finite = True
            stats = self.collector.quick(tensor)
            if stats is None and not tensor.is_meta:
                with DisableTorchDispatch(), ExcludeKeys(AUTOCAST_KEYS):
                    stats = self.collector.take(tensor)
                    if not isinstance(stats, Late) and stats.nonfinite:
                        self._bad_write(number, plan, given, slot, tensor, stats)
                        return
        # what nobody looked at is not known to be finite: whoever reads it within a part counts it
        record = self.log.wrote(tensor, number, finite)
        self.events.wrote(number, (slot, record.number, stats, dtype, tensor.shape))

    def _bad_write(
        self,
        number: int,
        plan: OpPlan,
        given: Given,
        slot: str,
        tensor: Tensor,
        stats: TensorStats,
    ) -> None:
        event = self.events[number]
        part = given if isinstance(given, list) else arguments(plan, *given)
        record = self.log.record(tensor)
        shape = tuple(tensor.shape)
        write = Write(slot, record.number, stats, DTYPE_NAMES[tensor.dtype], shape)
        write.first, write.samples = bad_positions(tensor)
        verify_inputs(event, plan, part)
        event.absorbs_some |= absorbs_some(event, plan, part, write, tensor)
        self.log.wrote(tensor, number, finite=False)
        self.events.wrote(number, write)
