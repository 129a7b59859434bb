"""The computations that can show an origin again, the one nearest to user code first.

A value born in backward is shown through its forward function and ``autograd.grad``; anything else
by its op alone; a number that left the tensor world, or an Inf that was absorbed, by a chain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import resolve_name

from workbench.diagnose.changed import run_changed
from workbench.diagnose.computation import Call, Computation, Ref, Taking, tensors_of
from workbench.diagnose.flow import scalar_producer
from workbench.diagnose.interventions import Intervention
from workbench.errors import CannotRunError
from workbench.replay.trace_arguments import cloned
from workbench.replay.trace_plan import plan_of

if TYPE_CHECKING:
    from workbench.diagnose.analysis import Analysis, Judged
    from workbench.replay import Replay
    from workbench.replay.trace_events import KeptEvent

MAX_CHAIN = 8
_PATH = re.compile(r"torch(\.[A-Za-z_]\w*)+")


def op_alone(kept: KeptEvent, element: int | None = None) -> Computation:
    """The op with its real arguments.

    Args:
        kept: The op's call.
        element: Of a ``_foreach_`` or fused op, the only list element to take; None takes all.

    Raises:
        CannotRunError: A script cannot hold its arguments, or the op is not torch's own.
    """
    return op_chain([kept if element is None else _one_element(kept, element)])


def _one_element(kept: KeptEvent, element: int) -> KeptEvent:
    lists = [v for v in (*kept.args, *kept.kwargs.values()) if isinstance(v, list | tuple) and v]
    count = len(lists[0]) if lists else 0

    def one(value: Any) -> Any:
        same = isinstance(value, list | tuple) and len(value) == count > element
        return [value[element]] if same else value

    args = tuple(one(value) for value in kept.args)
    return replace(kept, args=args, kwargs={n: one(v) for n, v in kept.kwargs.items()})


def op_chain(events: Sequence[KeptEvent]) -> Computation:
    """Ops one after the other; what an earlier one gave is taken from there.

    Raises:
        CannotRunError: A script cannot hold their arguments, or an op is not torch's own.
    """
    taking = _Chained()
    calls: list[Call] = []
    filled = False
    for kept in events:
        plan = plan_of(kept.func)
        if not str(kept.func).startswith(("aten.", "prims.")):
            raise CannotRunError(
                f"The op '{plan.name}' is not one of torch's own, and a script that needs torch "
                "only cannot call it, so no repro was written. The bundle itself still replays "
                "the step."
            )
        args = tuple(taking(value) for value in kept.args)
        kwargs = {name: taking(value) for name, value in kept.kwargs.items()}
        named = dict(zip(kept.names, args, strict=False)) | kwargs
        written = tuple(r.name for n in plan.arguments if n in plan.written for r in refs(named, n))
        result = f"r{len(calls)}"
        calls.append(Call(kept.func, f"torch.ops.{kept.func}", args, kwargs, result, written or ()))
        filled |= plan.uninitialised
        if not written:
            taking.made(result, kept.outputs)
    return Computation(tuple(calls), taking.tensors, rng=taking.rng, filled=filled)


def refs(named: Mapping[str, Any], name: str) -> list[Ref]:
    """The references in one argument."""
    value = named.get(name)
    items = value if isinstance(value, list | tuple) else [value]
    return [item for item in items if isinstance(item, Ref)]


class _Chained(Taking):
    """Recognises results of earlier calls by their content."""

    def __init__(self) -> None:
        super().__init__()
        self._results: list[tuple[torch.Tensor, str]] = []

    def made(self, result: str, outputs: Sequence[torch.Tensor]) -> None:
        """Note the result of a call that gives one tensor."""
        if len(outputs) == 1:
            self._results.append((outputs[0], result))

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            for known, result in self._results:
                if _same(known, value):
                    return Ref(result)
        return super().__call__(value)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype or not a.numel():
        return False
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())


class _Watched:
    """Keeps the real arguments of one torch function call, and the gradients that reach it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.applied = False
        self.func: Any = None
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.autocast: tuple[str, torch.dtype] | None = None
        self.gradients: dict[int, torch.Tensor] = {}
        self.rng: torch.Tensor | None = None

    def __call__(
        self,
        current: int,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        if current != self.number:
            return NotImplemented
        with torch.no_grad():
            self.args = cloned(args)
            self.kwargs = {name: cloned(value) for name, value in kwargs.items()}
        self.func, self.applied, self.autocast = func, True, _autocast()
        self.rng = torch.get_rng_state()
        out = func(*args, **kwargs)
        for place, tensor in enumerate(tensors_of(out)):
            if tensor.requires_grad:
                tensor.register_hook(self._hook(place))
        return out

    def _hook(self, place: int) -> Callable[[torch.Tensor], None]:
        def keep(gradient: torch.Tensor) -> None:
            self.gradients.setdefault(place, gradient.detach().clone())

        return keep


class _Raising:
    """Keeps the arguments of the torch function call that raised."""

    def __init__(self) -> None:
        self.applied = True
        self.func: Any = None
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.autocast: tuple[str, torch.dtype] | None = None

    def __call__(
        self,
        current: int,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        del current
        try:
            return func(*args, **kwargs)
        except Exception:
            if func is not torch.Tensor.backward:
                self.func, self.autocast = func, _autocast()
                self.args = cloned(args)
                self.kwargs = {name: cloned(value) for name, value in kwargs.items()}
            raise


def _autocast() -> tuple[str, torch.dtype] | None:
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            return device, torch.get_autocast_dtype(device)
    return None


def drawn(replay: Replay, judged: Judged) -> Computation | None:
    """A random op through its torch function, with the generator's state; None for other ops.

    Raises:
        CannotRunError: A script cannot hold its arguments.
    """
    event, kept = judged.case.event, judged.case.kept.get(judged.origin.event)
    if event is None or kept is None or event.function_call < 0:
        return None
    if torch.Tag.nondeterministic_seeded not in kept.func.tags:
        return None
    watched = _Watched(event.function_call)
    run_changed(replay, Intervention("", watched))
    taking = Taking()
    call = _function(watched, taking) if watched.func is not None else None
    if call is None:
        return None
    rng = watched.rng if taking.rng is None else taking.rng
    return Computation((call,), taking.tensors, autocast=watched.autocast, rng=rng)


def through_gradient(replay: Replay, analysis: Analysis, judged: Judged) -> Computation | None:
    """The forward function of an origin in backward, and its gradient; None where there is none.

    Raises:
        CannotRunError: A script cannot hold its arguments.
    """
    event = judged.case.event
    if event is None or event.node is None or event.user_code or event.forward_event is None:
        return None
    number = analysis.trace.graph[event.forward_event].function_call
    if number < 0:
        return None
    watched = _Watched(number)
    run_changed(replay, Intervention("", watched))
    if not watched.gradients:
        return None
    taking = Taking()
    call = _function(watched, taking)
    in_place = call is not None and call.path.endswith("_") and not call.path.endswith("__")
    if call is None or in_place:
        return None  # a leaf that needs a gradient cannot be written in place
    gradients = {place: taking.add(g, "g") for place, g in watched.gradients.items()}
    return Computation((call,), taking.tensors, gradients, watched.autocast, rng=taking.rng)


def raising(replay: Replay, analysis: Analysis, judged: Judged) -> Computation | None:
    """The op or torch function that raised; None where Python code raised outside of torch.

    Raises:
        CannotRunError: A script cannot hold its arguments.
    """
    raised = analysis.trace.raised
    kept = judged.case.kept.get(judged.origin.event)
    if raised is None:
        return None
    if kept is not None and raised.event is not None:
        return replace(op_alone(kept), raises=True)
    watched = _Raising()
    run_changed(replay, Intervention("", watched))
    if watched.func is None:
        return None
    taking = Taking()
    call = _function(watched, taking)
    if call is None:
        return None
    return Computation(
        (call,), taking.tensors, autocast=watched.autocast, rng=taking.rng, raises=True
    )


def _function(watched: _Watched | _Raising, taking: Taking) -> Call | None:
    path = resolve_name(watched.func)
    if path is None or not _PATH.fullmatch(path) or not _reachable(path):
        return None
    args = tuple(taking(value) for value in watched.args)
    kwargs = {name: taking(value) for name, value in watched.kwargs.items()}
    return Call(watched.func, path, args, kwargs, "r0")


def _reachable(path: str) -> bool:
    value: Any = torch
    for name in path.split(".")[1:]:
        value = getattr(value, name, None)
    return callable(value)


def chains(replay: Replay, analysis: Analysis, judged: Judged) -> Iterator[Computation]:
    """Chains that end at the origin's op, shortest first.

    Raises:
        CannotRunError: A script cannot hold their arguments.
    """
    event = judged.case.event
    if event is None:
        return
    graph = analysis.trace.graph
    wanted = [event.index]
    if judged.origin.kind == "nonfinite_scalar":
        producer = scalar_producer(graph, event.index)
        if producer is not None:
            wanted.insert(0, producer)
            yield from _kept_chain(replay, wanted)
    while len(wanted) < MAX_CHAIN:
        before = [p for i in wanted for read in graph[i].reads for p in read.producers[:1]]
        new = sorted(set(before) - set(wanted))
        if not new:
            return
        wanted = sorted([*new[-2:], *wanted])
        yield from _kept_chain(replay, wanted)


def absorbed_chain(replay: Replay, analysis: Analysis, birth: int, absorber: int) -> Computation:
    """The ops from the one in which an Inf was born to the one that made a finite number of it.

    Raises:
        CannotRunError: A script cannot hold their arguments.
    """
    graph = analysis.trace.graph
    came_from: dict[int, int] = {}
    level = [absorber]
    while level and birth not in came_from:
        following = []
        for at in level:
            for read in graph[at].bad_reads:
                for producer in read.producers:
                    if producer >= birth and producer not in came_from:
                        came_from[producer] = at
                        following.append(producer)
        level = following
    path = [birth]
    while path[-1] in came_from:
        path.append(came_from[path[-1]])
    if path[-1] != absorber or len(path) > MAX_CHAIN:
        path = [birth, absorber]
    return next(_kept_chain(replay, path))


def _kept_chain(replay: Replay, events: Sequence[int]) -> Iterator[Computation]:
    kept = replay.kept(events, conditions=replay.nearest).events
    found = {id(kept[i]): kept[i] for i in events if i in kept}
    yield op_chain(sorted(found.values(), key=lambda kept: kept.event))
