"""Diagnostic changes of single calls, conditions, batches or states, to test a cause by replay.

Each is specific: one call of one function, one module, one sample, one field. None of them is a
repair of the user's code; they show what the failure depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from workbench.diagnose.recompute import recompute
from workbench.diagnose.rewrites import Rewrite, in_dtype
from workbench.diagnose.rewrites_values import representable_eps, usable_eps
from workbench.replay.calls import Change

if TYPE_CHECKING:
    from workbench.diagnose.case import Case
    from workbench.step.state import StepState


@dataclass(frozen=True)
class Intervention:
    """One diagnostic change.

    Attributes:
        name: What is changed, as a noun phrase: "log_softmax instead of log(softmax)".
        change: Replaces calls, or None.
        call: Number of the call it replaces, for choosing a placebo, or None.
        conditions: Conditions to change, by name.
        batch: Changes the recorded micro-batches, or None.
        state: Changes the recorded state from before the step, or None.
        placebo: The same kind of change elsewhere, or None when it is chosen by call.
    """

    name: str
    change: Change | None = None
    call: int | None = None
    conditions: Mapping[str, Any] = field(default_factory=dict)
    batch: Callable[[Any], Any] | None = None
    state: Callable[[StepState], StepState] | None = None
    placebo: Intervention | None = None


class WhereRaised:
    """Apply a rewrite to calls that raise, in their place.

    Args:
        rewrite: The rewrite; where it declines, the exception goes on.
    """

    def __init__(self, rewrite: Rewrite) -> None:
        self.rewrite = rewrite
        self.applied = False

    def __call__(
        self,
        current: int,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Run the call; rewrite it when it raises."""
        del current
        if func is torch.Tensor.backward:
            return NotImplemented
        try:
            return func(*args, **kwargs)
        except Exception:
            result = self.rewrite(func, args, kwargs)
            if result is NotImplemented:
                raise
            self.applied = True
            return result


class Together:
    """Several changes at once; it was put in only when all of them were.

    Args:
        changes: Changes of single calls.
    """

    def __init__(self, changes: Collection[AtCall]) -> None:
        self.changes = tuple(changes)

    @property
    def applied(self) -> bool:
        """Whether every one of them was put in."""
        return all(change.applied for change in self.changes)

    def __call__(
        self,
        current: int,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Ask each in order."""
        for change in self.changes:
            result = change(current, func, args, kwargs)
            if result is not NotImplemented:
                return result
        return NotImplemented


class AtCall:
    """Apply a rewrite to single calls only.

    Args:
        numbers: Numbers of the calls.
        rewrite: The rewrite; it may decline with ``NotImplemented``.

    Attributes:
        applied: Whether it was put in: a change that was not says nothing.
    """

    def __init__(self, numbers: Collection[int], rewrite: Rewrite) -> None:
        self.numbers = frozenset(numbers)
        self.rewrite = rewrite
        self.applied = False

    def __call__(
        self,
        current: int,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Rewrite the call it is for."""
        if current not in self.numbers:
            return NotImplemented
        result = self.rewrite(func, args, kwargs)
        self.applied |= result is not NotImplemented
        return result


def rewritten(case: Case, name: str, rewrite: Rewrite) -> list[Intervention]:
    """One intervention: the calls that made the origin and its like rewritten.

    In backward that is the forward call of the node, unless a hook or a custom backward made it.
    Other origins of the same op (an optimizer's other parameters, say) are rewritten with it. After
    an exception it is the call that raises.
    """
    if case.origin.kind == "exception":
        return [Intervention(name, WhereRaised(rewrite))]
    graph = case.trace.graph
    op = case.event.op if case.event is not None else ""
    numbers = []
    for origin in [case.origin, *case.slice.origins]:
        event = graph[origin.event] if 0 <= origin.event < len(graph) else None
        if event is None or event.op != op:
            continue
        if event.forward_event is not None and not event.user_code:
            event = graph[event.forward_event]
        if event.function_call >= 0:
            numbers.append(event.function_call)
    if not numbers:
        return []
    return [Intervention(name, AtCall(numbers, rewrite), numbers[0])]


def with_eps(case: Case) -> list[Intervention]:
    """An eps the dtype can use, where one upstream rounded to 0."""
    graph = case.trace.graph
    lost = case.lost_scalars()
    numbers = [n for index, _ in lost if (n := graph[index].function_call) >= 0]
    dtype = getattr(torch, graph[lost[0][0]].writes[0].dtype, None) if numbers else None
    if dtype is None:
        return []
    name = f"an eps of {usable_eps(dtype):g} where {lost[0][1]:g} rounds to 0"
    return [Intervention(name, AtCall(numbers, representable_eps()), numbers[0])]


def in_wider_dtype(case: Case) -> list[Intervention]:
    """The call, and then its module, in float32 (float64 where it was float32 already)."""
    low = case.dtype in ("float16", "bfloat16")
    dtype = torch.float32 if low else torch.float64
    name = str(dtype).removeprefix("torch.")
    base = _rewritten_base(case)
    event = case.event
    narrow = event is None or event.where != "clip"
    found = []
    if low or not narrow or _fits(case):
        found = rewritten(case, f"{base} in {name}", in_dtype(dtype, narrow=narrow))
    if low and event is not None and event.where == "module" and event.module:
        placebo = _other_module(case, event.module)
        found.append(
            Intervention(
                f"{event.module} in float32",
                conditions={"float32_modules": (event.module,)},
                placebo=placebo,
            )
        )
    return found


def _rewritten_base(case: Case) -> str:
    """The op whose call a change is made in: in backward the node's forward op."""
    event = case.event
    if event is not None and event.forward_event is not None and not event.user_code:
        base = case.trace.graph[event.forward_event].base
    else:
        base = case.base
    return base.strip("_") or "the op"


def _fits(case: Case) -> bool:
    """Whether float32 can hold what float64 makes of the origin's op: it goes back to float32."""
    kept = case.kept.get(case.origin.event)
    wide = None if kept is None else recompute(kept, case.element())
    if kept is None or wide is None or case.range != "overflow" or not kept.outputs:
        return True
    actual = kept.outputs[min(case.element(), len(kept.outputs) - 1)]
    bad = ~torch.isfinite(actual)
    if bad.shape != wide.shape or not bool(bad.any()):
        return True
    return bool((wide[bad].abs() <= torch.finfo(torch.float32).max).any())


def unscaled_before_clipping(case: Case) -> list[Intervention]:
    """The order exchanged of a loop that clips gradients while they are scaled.

    The placebo is another threshold: a change of the clip that leaves its order.
    """
    scale = case.facts.get("scale")
    graph = case.trace.graph
    clip = next((e.index for e in graph if e.stage == "clip"), None)
    scaled = isinstance(scale, float) and scale != 1.0
    if clip is None or not scaled or any(e.stage == "unscale" for e in graph[:clip]):
        return []
    return [
        Intervention(
            "gradients unscaled before they are clipped",
            conditions={"clip_before_unscale": True},
            placebo=Intervention("a clip threshold of 1e6", conditions={"max_grad_norm": 1e6}),
        )
    ]


def _other_module(case: Case, module: str) -> Intervention | None:
    """Another leaf module that the bad value did not pass."""
    visited = {case.trace.graph[i].module for i in case.slice.visited}
    for row in case.trace.rows:
        other = row.module
        usable = row.tensor == "activation" and other and other not in visited
        if usable and not other.startswith(module) and not module.startswith(other):
            return Intervention(f"{other} in float32", conditions={"float32_modules": (other,)})
    return None
