"""The computation that shows a failure again outside of its step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from workbench.diagnose import computations
from workbench.diagnose.causes import name_cause
from workbench.diagnose.computation import Computation, Ran
from workbench.diagnose.shrink import FirstBad
from workbench.errors import CannotRunError
from workbench.evidence.wording import clean

if TYPE_CHECKING:
    from workbench.diagnose.analysis import Analysis, Judged
    from workbench.replay import Replay


@dataclass(frozen=True)
class Shown:
    """A computation that was seen to fail, and what it is of.

    Attributes:
        op: The origin's op.
        shows: What the computation is, as a noun phrase.
        computation: The computation.
        still: Judges whether a smaller one still fails in the same way.
    """

    op: str
    shows: str
    computation: Computation
    still: Callable[[Computation, Ran], bool]


def first_that_fails(replay: Replay, analysis: Analysis) -> Shown:
    """Find the first way to show the failure that does fail when it is run here.

    Args:
        replay: The replay.
        analysis: Its analysis, with an origin or something absorbed.

    Raises:
        CannotRunError: There is none, with the reason.
    """
    why = None
    for candidate in _candidates(replay, analysis):
        try:
            for shown in candidate():
                if shown.still(shown.computation, shown.computation.run()):
                    return shown
        except CannotRunError as error:
            why = why or error
    if why is not None:
        raise why
    raise CannotRunError(_no_computation(analysis))


def _no_computation(analysis: Analysis) -> str:
    if not analysis.origins:
        return "The absorbed Inf does not come again outside of the step, so no repro was written."
    first, raised = analysis.origins[0].origin, analysis.trace.raised
    if first.kind == "exception" and raised is not None:
        return (
            f"'{clean(raised.type)}' was raised by Python code outside of any torch call, so there "
            "is no torch computation to minimise. `workbench replay` runs the step to that point."
        )
    if first.leaf is not None:
        return (
            f"The origin is '{first.kind}' ({clean(first.leaf)}): the value was bad before any op "
            "ran, and no op read it, so there is no computation to minimise."
        )
    return (
        f"Neither the op of the origin ('{first.kind}') nor up to {computations.MAX_CHAIN} ops "
        "before it give a non-finite result outside of the step, so no repro was written. Replay "
        "the bundle instead."
    )


def _candidates(replay: Replay, analysis: Analysis) -> Iterator[Callable[[], Iterator[Shown]]]:
    """Ways to show the failure, most telling first; each may turn out not to be possible."""
    for judged in analysis.origins:
        for way in (_exception, _drawn, _gradient, _op, _chain):
            yield partial(way, replay, analysis, judged)
    for absorption, judged in analysis.absorbed:
        yield partial(_absorbed, replay, analysis, absorption, judged)


def _exception(replay: Replay, analysis: Analysis, judged: Judged) -> Iterator[Shown]:
    if judged.origin.kind != "exception":
        return
    found = computations.raising(replay, analysis, judged)
    if found is None:
        return
    first = found.run().error
    op = judged.case.event.op if judged.case.event is not None else found.calls[-1].path
    yield Shown(op, "the call that raises", found, lambda c, ran: ran.error == first is not None)


def _drawn(replay: Replay, analysis: Analysis, judged: Judged) -> Iterator[Shown]:
    del analysis
    found = computations.drawn(replay, judged)
    if found is not None and judged.case.event is not None:
        shows = "the random function with the generator's state"
        yield Shown(judged.case.event.op, shows, found, lambda c, ran: bool(ran.kinds))


def _gradient(replay: Replay, analysis: Analysis, judged: Judged) -> Iterator[Shown]:
    found = computations.through_gradient(replay, analysis, judged)
    if found is not None and judged.case.event is not None:
        shows = "the gradient of its forward function"
        yield Shown(judged.case.event.op, shows, found, _same_birth(judged, found))


def _op(replay: Replay, analysis: Analysis, judged: Judged) -> Iterator[Shown]:
    del replay, analysis
    case = judged.case
    kept, event = case.kept.get(case.origin.event), case.event
    if kept is None or event is None or case.origin.kind == "exception":
        return
    if case.origin.leaf is not None:
        shows = f"the first op that read {clean(case.origin.leaf)}, which was bad before it"
        found = computations.op_alone(kept)
        yield Shown(event.op, shows, found, lambda c, ran: bool(ran.kinds))
        return
    shows = "the op alone with its real inputs"
    if plan_lists(kept.args):
        one = computations.op_alone(kept, case.element())
        yield Shown(event.op, shows, one, _same_birth(judged, one))
    found = computations.op_alone(kept)
    yield Shown(event.op, shows, found, _same_birth(judged, found))


def plan_lists(args: tuple[Any, ...]) -> bool:
    """Whether the first argument is a list of tensors, as those of list ops are."""
    return bool(args) and isinstance(args[0], list | tuple) and len(args[0]) > 1


def _chain(replay: Replay, analysis: Analysis, judged: Judged) -> Iterator[Shown]:
    case = judged.case
    if case.event is None or case.origin.kind == "exception":
        return
    for found in computations.chains(replay, analysis, judged):
        shows = f"a chain of {len(found.calls)} ops"
        yield Shown(case.event.op, shows, found, lambda c, ran: bool(ran.kinds))


def _absorbed(
    replay: Replay, analysis: Analysis, absorption: Any, judged: Judged
) -> Iterator[Shown]:
    found = computations.absorbed_chain(replay, analysis, absorption.birth, absorption.absorber)
    op = judged.case.event.op if judged.case.event is not None else ""

    shows = "an Inf, and the op that made a finite number of it"
    yield Shown(op, shows, found, lambda c, ran: bool(ran.kinds) and not ran.last)


def _same_birth(judged: Judged, first: Computation) -> Callable[[Computation, Ran], bool]:
    """Judges whether the origin's op still fails in the same way: same kinds, range and cause.

    Fewer rows can fail for another reason (a variance over one element), which is no repro of this
    failure.
    """
    case, label = judged.case, judged.cause.label if judged.cause is not None else None
    op = case.event.op if case.event is not None else ""
    kinds = first.run().kinds

    def still(candidate: Computation, ran: Ran) -> bool:
        if not ran.kinds or not ran.kinds <= kinds:
            return False
        watch = FirstBad(op)
        with watch:
            candidate.run()
        if watch.kept is None:
            return False
        kept = replace(watch.kept, event=case.origin.event)
        again = replace(case, kept={**case.kept, case.origin.event: kept})
        again.judge_range()
        cause = name_cause(again)
        return again.range == case.range and (cause.label if cause else None) == label

    return still
