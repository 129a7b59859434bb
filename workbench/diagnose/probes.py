"""Probes of a bisect: fresh runs of the recorded step with hooks at a few module boundaries.

No dispatch mode is active here. Forward hooks and tensor hooks leave the step's bits alone
(DESIGN rule 1); a probe ends early by an exception of its own that user code does not catch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from workbench.diagnose.boundaries import INTENDED, NOTHING, Kinds, Named, kinds_in, kinds_of
from workbench.replay.compiled import is_compiled
from workbench.replay.plan import recorded_stop
from workbench.replay.session import Session
from workbench.replay.trace_focus import tensors_in
from workbench.step.names import walk
from workbench.step.snapshots import copy_tree

if TYPE_CHECKING:
    from torch import Tensor, nn

    from workbench.evidence import Conditions
    from workbench.replay import Replay
    from workbench.step.runner import Outcome

Install = Callable[[Session, ExitStack], None]
"""Puts hooks on a freshly built model; what it pushes on the stack is taken off again."""


@dataclass(frozen=True, slots=True)
class Place:
    """One boundary of one call of a module.

    Attributes:
        side: ``input``, ``output``, ``tail`` (after the last block), ``gradient`` or ``parameter``.
        module: Path of the module; empty for ``tail``.
        nth: Which call of it, from 0.
    """

    side: str
    module: str
    nth: int = 0


@dataclass(frozen=True)
class Seen:
    """Where a probe ended, or the first bad gate it came to.

    Attributes:
        place: The boundary it stopped at, or None when it ran to a gate or to its end.
        kinds: What was non-finite there and had not been before.
        stage: The stage it ended in.
        outcome: The outcome of the gate that tripped, or None.
        noted: Boundaries passed that held only -Inf, which may be meant.
        consumers: For a gradient, the calls that used the tensor: its gradient comes from there.
        boundaries: How many boundaries were looked at.
    """

    place: Place | None
    kinds: Kinds = NOTHING
    stage: str = ""
    outcome: Outcome | None = None
    noted: tuple[Place, ...] = ()
    consumers: tuple[Place, ...] = ()
    boundaries: int = 0


@dataclass(frozen=True, slots=True)
class Probe:
    """One run of the step, for the count that is printed."""

    what: str
    result: str

    def to_data(self) -> dict[str, str]:
        """As plain data."""
        return {"what": self.what, "result": self.result}


class Stop(BaseException):
    """Ends a probe at a boundary."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen = seen


@dataclass
class Prober:
    """Runs probes of one recorded step and counts them.

    Attributes:
        replay: The replay; its live session is left alone.
        probes: What was run so far.
    """

    replay: Replay
    probes: list[Probe] = field(default_factory=list)

    def note(self, what: str, result: str) -> None:
        """Count one run."""
        self.probes.append(Probe(what, result))

    def run(
        self, install: Install = lambda session, stack: None, conditions: Conditions | None = None
    ) -> Seen:
        """Run the step from its sealed state to the first bad gate, or to where hooks stop it."""
        source = self.replay.source
        session = Session(source, conditions or self.replay.nearest)
        missing = source.unavailable()
        compiled = is_compiled(session.runner.model)
        with ExitStack() as stack:
            # hooks of a compiled model fire only where it runs eagerly
            stack.enter_context(session.running(traced=compiled))
            install(session, stack)
            try:
                return _to_first_bad(session, missing)
            except Stop as stop:
                return stop.seen

    def still_fails(self, install: Install, conditions: Conditions | None = None) -> bool:
        """Whether the step still trips where the record tripped, or before."""
        source = self.replay.source
        session = Session(source, conditions or self.replay.nearest)
        stop = recorded_stop(session.runner, source)
        with ExitStack() as stack:
            stack.enter_context(session.running(traced=is_compiled(session.runner.model)))
            install(session, stack)
            while session.runner.position < stop and session.runner.next_unit is not None:
                if session.advance().status == "bad":
                    return True
        return False


def _to_first_bad(session: Session, missing: Collection[str]) -> Seen:
    runner = session.runner
    stage = ""
    while (unit := runner.next_unit) is not None and unit.stage not in missing:
        outcome = session.advance()
        stage = outcome.unit.stage
        if outcome.status == "bad":
            return Seen(None, stage=stage, outcome=outcome)
    return Seen(None, stage=stage)


class ForwardScan:
    """Stops at the first boundary with non-finite values that nothing before it had.

    A boundary that adds only -Inf is noted and passed: it may be a mask that was meant.

    Args:
        targets: Modules to look at, none inside another.
        passed: Boundaries not to stop at again.
        patches: Boundaries where non-finite values are set to zero.
        within: Only look while this module runs; its own output is then the last boundary.
        only: Look at this call only (counted over all targets) and stop there in any case.
        start: Look from this call on.
        unit: Phase and micro-batch that ``only`` and ``start`` count the calls of; None for all.
    """

    def __init__(
        self,
        targets: Sequence[Named],
        passed: Collection[Place] = (),
        patches: Collection[Place] = (),
        *,
        within: Named | None = None,
        only: int | None = None,
        start: int = 0,
        unit: tuple[str, int] | None = None,
    ) -> None:
        self._targets, self._within = targets, within
        self._passed, self._patches = frozenset(passed), frozenset(patches)
        self._only, self._start, self._unit = only, start, unit
        self.calls = 0
        self._counts: dict[str, int] = {}
        self._seen: Kinds = NOTHING
        self._noted: list[Place] = []
        self._inputs: list[Kinds] = []
        self._inside = 0
        self._session: Session | None = None

    def __call__(self, session: Session, stack: ExitStack) -> None:
        """Put the hooks on."""
        self._session = session
        modules = dict(modules_of(session))
        for path, _ in self._targets:
            module = modules[path]
            put_on(stack, module.register_forward_pre_hook(self._before(path), with_kwargs=True))
            put_on(stack, module.register_forward_hook(self._after(path)))
        if self._within is not None:
            outer = modules[self._within[0]]
            put_on(stack, outer.register_forward_pre_hook(self._enter, with_kwargs=True))
            put_on(stack, outer.register_forward_hook(self._leave))
        elif self._only is None:
            _wrap_forward(session, stack, self._tail)

    @property
    def _looking(self) -> bool:
        if self._within is not None and not self._inside:
            return False
        session = self._session
        return session is not None and stage_of(session) in ("forward", "loss")

    @property
    def _counting(self) -> bool:
        session = self._session
        if self._unit is None or session is None:
            return True
        now = session.runner.plan[session.runner.position - 1]
        return (now.phase, now.micro_step) == self._unit

    def _enter(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        self._inside += 1
        self._seen |= kinds_in((args, kwargs))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        del module, args
        if self._looking and self._within is not None:
            # nothing inside was bad before: the block's own code made it
            self._judge(Place("tail", self._within[0]), kinds_in(output))
        self._inside -= 1

    def _before(self, path: str) -> Any:
        def before(_: nn.Module, args: Any, kwargs: Any) -> Any:
            if not self._looking:
                return None
            nth = self._counts[path] = self._counts.get(path, -1) + 1
            place = Place("input", path, nth)
            if among(place, self._patches):
                args, kwargs = finite_copy(args), finite_copy(kwargs)
            if self._only is None and self._counting and self.calls >= self._start:
                self._judge(place, kinds_in((args, kwargs)))
            return (args, kwargs) if among(place, self._patches) else None

        return before

    def _after(self, path: str) -> Any:
        def after(_: nn.Module, args: Any, output: Any) -> Any:
            del args
            if not self._looking:
                return None
            place = Place("output", path, self._counts.get(path, 0))
            self.calls += self._counting
            if among(place, self._patches):
                output = finite_copy(output)
            if not self._counting:
                pass
            elif self._only is not None:
                if self.calls - 1 == self._only:
                    self._stop(place, kinds_in(output))
            elif self.calls > self._start:
                self._judge(place, kinds_in(output))
            return output if among(place, self._patches) else None

        return after

    def _tail(self, outputs: list[Any]) -> None:
        place = Place("tail", "")
        if among(place, self._patches):
            outputs[-1] = finite_copy(outputs[-1])
        self._judge(place, kinds_in(outputs[-1]))

    def _judge(self, place: Place, kinds: Kinds) -> None:
        new = kinds - self._seen
        self._seen |= kinds
        if not new or place in self._passed:
            return
        if new <= INTENDED:
            self._noted.append(place)
        else:
            self._stop(place, new)

    def _stop(self, place: Place, kinds: Kinds) -> None:
        stage = stage_of(self._session) if self._session is not None else ""
        raise Stop(Seen(place, kinds, stage, noted=tuple(self._noted), boundaries=self.calls))

    def add_to(self, seen: Seen) -> Seen:
        """What was noted on the way to a gate."""
        if seen.place is not None:
            return seen
        return Seen(None, seen.kinds, seen.stage, seen.outcome, tuple(self._noted), (), self.calls)


def among(place: Place, patches: Collection[Place]) -> bool:
    """Whether a boundary is patched: a module that is called again stays patched."""
    return any(
        (p.side, p.module) == (place.side, place.module) and p.nth <= place.nth for p in patches
    )


def finite_copy(tree: Any) -> Any:
    """Copy a tree with every non-finite value set to zero; finite tensors stay as they are."""

    def one(tensor: Tensor) -> Tensor:
        if not any(tensor is plain for plain in tensors_in(tensor)) or not kinds_of([tensor]):
            return tensor
        return torch.nan_to_num(tensor, nan=0.0, posinf=0.0, neginf=0.0)

    return copy_tree(tree, one)


def modules_of(session: Session) -> Iterator[Named]:
    """Modules by path, wrappers left out."""
    yield from walk(session.runner.model)


def put_on(stack: ExitStack, handle: Any) -> None:
    """Have a hook taken off again with the stack."""
    stack.callback(handle.remove)


def stage_of(session: Session | None) -> str:
    """The stage that is running; empty before the first."""
    if session is None or session.runner.position == 0:
        return ""
    return session.runner.plan[session.runner.position - 1].stage


def _wrap_forward(session: Session, stack: ExitStack, tail: Callable[[list[Any]], None]) -> None:
    """Look at what the step's forward hands to its loss, as the last boundary of all."""
    stack.enter_context(_watched_outputs(session, tail))


@contextmanager
def _watched_outputs(session: Session, tail: Callable[[list[Any]], None]) -> Iterator[None]:
    def before_unit(unit: Any) -> None:
        if unit.stage == "loss" and session.runner.values.outputs:
            tail(session.runner.values.outputs)

    session.runner.before_unit = before_unit
    try:
        yield
    finally:
        session.runner.before_unit = None
