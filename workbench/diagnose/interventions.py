"""Diagnostic changes of single calls, conditions, batches or states, to test a cause by replay.

Each is specific: one call of one function, one module, one sample, one field. None of them is a
repair of the user's code; they show what the failure depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from workbench.diagnose.rewrites import Rewrite, in_dtype
from workbench.replay.calls import Change

if TYPE_CHECKING:
    from workbench.diagnose.case import Case


@dataclass(frozen=True)
class Intervention:
    """One diagnostic change.

    Attributes:
        name: What is changed, as a noun phrase: "log_softmax instead of log(softmax)".
        change: Replaces calls, or None.
        call: Number of the call it replaces, for choosing a placebo, or None.
        conditions: Conditions to change, by name.
        batch: Changes the recorded micro-batches, or None.
        placebo: The same kind of change elsewhere, or None when it is chosen by call.
    """

    name: str
    change: Change | None = None
    call: int | None = None
    conditions: Mapping[str, Any] = field(default_factory=dict)
    batch: Callable[[Any], Any] | None = None
    placebo: Intervention | None = None


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
    Other origins of the same op (an optimizer's other parameters, say) are rewritten with it.
    """
    graph = case.trace.graph
    numbers = []
    for origin in [case.origin, *case.slice.origins]:
        event = graph[origin.event] if 0 <= origin.event < len(graph) else None
        if event is None or event.base != case.base:
            continue
        if event.forward_event is not None and not event.user_code:
            event = graph[event.forward_event]
        if event.function_call >= 0:
            numbers.append(event.function_call)
    if not numbers:
        return []
    return [Intervention(name, AtCall(numbers, rewrite), numbers[0])]


def in_wider_dtype(case: Case) -> list[Intervention]:
    """The call, and then its module, in float32 (float64 where it was float32 already)."""
    low = case.dtype in ("float16", "bfloat16")
    dtype = torch.float32 if low else torch.float64
    name = str(dtype).removeprefix("torch.")
    base = case.base.strip("_") or "the op"
    event = case.event
    narrow = event is None or event.where != "clip"
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


def repaired_batch(case: Case) -> list[Intervention]:
    """The non-finite elements of the batch as 0, and the samples that hold them left out."""
    repaired = Intervention("0 for the batch's non-finite elements", batch=_finite_batch)
    event = case.event
    write = next((w for w in event.writes if w.bad), None) if event is not None else None
    size = write.shape[0] if write is not None and write.shape else 0
    bad = set(write.samples) if write is not None else set()
    good = [i for i in range(size) if i not in bad]
    if not bad or not good or len(good) < 2:
        return [repaired]
    others = tuple(i for i in range(size) if i != good[0])
    placebo = Intervention(f"sample {good[0]} left out", conditions={"keep_samples": others})
    names = ", ".join(str(i) for i in sorted(bad)[:5])
    left_out = Intervention(
        f"sample {names} left out", conditions={"keep_samples": tuple(good)}, placebo=placebo
    )
    return [left_out, repaired]


def _finite_batch(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return torch.nan_to_num(tree, 0.0, 0.0, 0.0) if tree.is_floating_point() else tree
    if isinstance(tree, dict):
        return {key: _finite_batch(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple) and not hasattr(tree, "_fields"):
        return type(tree)(_finite_batch(item) for item in tree)
    return tree


def _other_module(case: Case, module: str) -> Intervention | None:
    """Another leaf module that the bad value did not pass."""
    visited = {case.trace.graph[i].module for i in case.slice.visited}
    for row in case.trace.rows:
        other = row.module
        usable = row.tensor == "activation" and other and other not in visited
        if usable and not other.startswith(module) and not module.startswith(other):
            return Intervention(f"{other} in float32", conditions={"float32_modules": (other,)})
    return None
