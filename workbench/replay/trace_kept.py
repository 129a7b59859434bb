"""The second pass of a diagnosis: the step runs once more, and chosen events' real arguments stay.

Only the ops are counted; nothing is looked at, so that it costs little more than the step itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from workbench.numerics.dense import nested_values
from workbench.replay.calls import CallMode, Change, unnumbered
from workbench.replay.trace_arguments import arguments, cloned, list_elements, tensors_in
from workbench.replay.trace_bad import written_besides, written_in_place
from workbench.replay.trace_collection import old_objects_set_aside
from workbench.replay.trace_context import StepContext, hook_modules
from workbench.replay.trace_events import KeptEvent
from workbench.replay.trace_plan import PLANS, OpPlan
from workbench.replay.trace_quiet import quiet
from workbench.step.stages import STAGES, Stage

if TYPE_CHECKING:
    from workbench.replay.trace import Trace
    from workbench.step.runner import Outcome, StepRunner


@dataclass
class KeptPass:
    """What a second pass kept.

    Attributes:
        ops: Names of the ops in order, one for each event of a trace of the same step.
        events: The kept calls by number of event.
        outcomes: What the units of the step came to.
    """

    ops: list[str] = field(default_factory=list)
    events: dict[int, KeptEvent] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def first_bad(self) -> Outcome | None:
        """The first outcome whose gate tripped."""
        return next((o for o in self.outcomes if o.status == "bad"), None)

    def same_events(self, trace: Trace) -> bool:
        """Whether the pass executed the ops of a trace in the same order."""
        return self.ops == [event.op for event in trace.graph]


def keep_events(
    runner: StepRunner,
    events: Collection[int],
    *,
    until: Stage | None = None,
    stop_when_bad: bool = True,
    changes: Iterable[Change] = (),
) -> KeptPass:
    """Run the rest of a step that was begun and keep the real arguments of some events.

    Args:
        runner: A runner after ``begin``.
        events: Numbers of events of an earlier trace of the same step.
        until: Last stage to run; None runs all.
        stop_when_bad: Whether to stop at the first gate that trips.
        changes: What is put in for single torch function calls, as in the trace.
    """
    mode = _KeepMode(events)
    last = STAGES.index(until) if until is not None else len(STAGES)
    # hooks as a trace has them: some modules take another way where they find none
    remove = hook_modules(StepContext(), runner.model, lambda call, output: None)
    try:
        with old_objects_set_aside(), CallMode(changes), mode:
            while (unit := runner.next_unit) is not None and STAGES.index(unit.stage) <= last:
                outcome = runner.advance(quiet)
                mode.found.outcomes.append(outcome)
                if outcome.status == "bad" and (stop_when_bad or outcome.exception is not None):
                    break
    finally:
        remove()
    return mode.found


class _KeepMode(TorchDispatchMode):
    """Counts ops as a trace numbers its events, and copies what chosen ones get and give."""

    def __init__(self, wanted: Collection[int]) -> None:
        super().__init__()
        self.found = KeptPass()
        self._wanted = frozenset(wanted)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # compiled modules run eagerly in here, as in a trace
        return False

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
            return self._count(func, plan, args, kwargs or {})

    def _count(self, func: Any, plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        ops = self.found.ops
        first = len(ops)
        if plan.elementwise_lists:
            ops += [plan.name] * len(list_elements(plan, arguments(plan, args, kwargs)))
        else:
            ops.append(plan.name)
        numbers = self._wanted.intersection(range(first, len(ops)))
        if not numbers:
            return func(*args, **kwargs)
        with quiet():
            kept = KeptEvent(
                first,
                func,
                tuple(_copied(value) for value in args),
                {name: _copied(value) for name, value in kwargs.items()},
                plan.arguments,
            )
        self.found.events |= dict.fromkeys(numbers, kept)
        out = func(*args, **kwargs)
        if any(_is_nested(value) for value in args) and not _is_nested(out):
            for number in numbers:  # what a nested tensor holds has other dimensions to reduce
                del self.found.events[number]
            return out
        with quiet():
            kept.outputs = [t.detach().clone() for _, t in tensors_in("out", out)]
            given = arguments(plan, args, kwargs)
            if plan.makes_new:
                kept.written = written_besides(plan, given)
            if not kept.outputs:  # a list op that writes in place returns nothing
                kept.outputs = written_in_place(plan, list_elements(plan, given))
        return out


def _is_nested(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_nested


def _copied(value: Any) -> Any:
    """A copy of an argument; of a nested tensor, of what it holds."""
    return cloned(nested_values(value) if _is_nested(value) else value)
