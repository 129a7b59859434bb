"""Make a computation's inputs as small as they can be while it still fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from workbench.diagnose.computation import Computation, Ran, Tensors
from workbench.diagnose.subsets import OutOfProbes, Probes, Subset, ddmin
from workbench.replay.trace_arguments import cloned
from workbench.replay.trace_events import KeptEvent
from workbench.replay.trace_plan import plan_of

MOST_RUNS = 2_000
"""Runs of the computation that shrinking may take."""
MOST_INDICES = 3_000_000
"""Indices that all subsets tried may have together: a sum of 65,000 ones is as small as it gets."""

Group = tuple[tuple[str, int], ...]
"""Dimensions of inputs, as (tensor, dimension), that are cut in the same places."""
Still = Callable[[Computation, Ran], bool]
"""Whether a smaller computation still fails in the way that is wanted."""


class FirstBad(TorchDispatchMode):
    """Keeps the arguments of the first call of one op that gives something non-finite."""

    def __init__(self, op: str) -> None:
        super().__init__()
        self.op = op
        self.kept: KeptEvent | None = None

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the op; note it when it is the one."""
        del types
        kwargs = kwargs or {}
        if self.kept is not None or str(func) != self.op:
            return func(*args, **kwargs)
        plan = plan_of(func)
        before = cloned(args), {name: cloned(value) for name, value in kwargs.items()}
        out = func(*args, **kwargs)
        named = dict(zip(plan.arguments, args, strict=False)) | kwargs
        made = [named[name] for name in plan.arguments if name in plan.written] or out
        flat = list(_tensors(made))
        if any(t.is_floating_point() and not bool(t.isfinite().all()) for t in flat):
            outputs = [t.detach().clone() for t in flat]
            self.kept = KeptEvent(0, func, before[0], before[1], plan.arguments, outputs)
        return out


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def shrink(computation: Computation, still: Still) -> Computation:
    """Cut rows and positions from the inputs by delta debugging.

    Args:
        computation: A computation that fails.
        still: Judges a smaller one.

    Returns:
        The smallest that was found; nothing can be cut from it in one of its dimensions alone, as
        far as the budget of runs went.
    """
    search = _Search(computation, still)
    try:
        while search.once():
            pass
    except OutOfProbes:
        pass
    return search.best


class _Search:
    def __init__(self, computation: Computation, still: Still) -> None:
        self.best = computation
        self.still = still
        self.runs = 0
        self.indices = 0
        self.ran_at_all = False

    def fails(self, tensors: Tensors) -> bool:
        if self.runs >= MOST_RUNS:
            raise OutOfProbes
        self.runs += 1
        candidate = self.best.with_tensors(tensors)
        ran = candidate.run()
        self.ran_at_all |= ran.error is None or self.best.raises
        return self.still(candidate, ran)

    def once(self) -> bool:
        """Try every group of dimensions once; whether anything got smaller."""
        smaller = False
        for group in _groups(self.best.tensors):
            size = _size(self.best.tensors, group)
            if size > 1 and self._cut(group, size):
                smaller = True
        return smaller

    def _cut(self, group: Group, size: int) -> bool:
        self.ran_at_all = False
        whole = self.best.tensors
        everything = [str(i) for i in range(size)]

        def probe(kept: Subset) -> bool:
            if not kept:
                return False
            self.indices += len(kept)
            if self.indices > MOST_INDICES:
                raise OutOfProbes
            failed = self.fails(_kept(whole, group, kept))
            if failed and len(kept) < _size(self.best.tensors, group):
                self.best = self.best.with_tensors(_kept(whole, group, kept))
            return failed

        half = size // 2
        ends = [everything[:half], everything[half:], everything[1:], everything[:-1]]
        if not any(probe(frozenset(end)) for end in ends if end) and not self.ran_at_all:
            return False  # these dimensions do not fit together
        found = ddmin(everything, frozenset(everything), Probes(probe, MOST_RUNS))
        if len(found) == size:
            return False
        self.best = self.best.with_tensors(_kept(whole, group, found))
        return True


def _kept(tensors: Tensors, group: Group, kept: Subset) -> Tensors:
    indices = torch.tensor(sorted(int(i) for i in kept))
    cut = dict(tensors)
    for name, dim in group:
        cut[name] = cut[name].index_select(dim, indices)
    return cut


def _size(tensors: Tensors, group: Group) -> int:
    sizes = {tensors[name].shape[dim] for name, dim in group}
    return int(sizes.pop()) if len(sizes) == 1 else 0


def _groups(tensors: Tensors) -> list[Group]:
    """Dimensions that may belong together: all of one size, those in one place, single ones."""
    everywhere: dict[int, list[tuple[str, int]]] = {}
    places: dict[tuple[int, int, bool], list[tuple[str, int]]] = {}
    for name, tensor in tensors.items():
        for dim, size in enumerate(tensor.shape):
            if size > 1:
                everywhere.setdefault(int(size), []).append((name, dim))
                places.setdefault((int(size), dim, True), []).append((name, dim))
                places.setdefault((int(size), tensor.dim() - dim, False), []).append((name, dim))
    found = [tuple(group) for _, group in sorted(everywhere.items(), reverse=True)]
    found += [tuple(group) for _, group in sorted(places.items(), reverse=True)]
    found += [((name, dim),) for group in everywhere.values() for name, dim in group]
    return list(dict.fromkeys(found))
