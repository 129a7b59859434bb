"""Test a cause by replay: make one specific change, and the same kind of change elsewhere.

A result is ``gone``, ``moved`` (elsewhere or later), ``benign_skip`` (only a scaler skip is left,
and the backward without the loss scale is finite) or ``unchanged``. The placebo must stay
``unchanged``, else the change is not specific. All of it is a diagnostic condition, never a repair
(DESIGN rule 10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from workbench.diagnose.changed import (
    Ended,
    Result,
    analyse_changed,
    classify,
    run_changed,
    trace_changed,
)
from workbench.diagnose.declared import repaired_to_domain
from workbench.diagnose.general import general_interventions
from workbench.diagnose.growth_runs import growth_rows
from workbench.diagnose.interventions import AtCall, Intervention, Together
from workbench.diagnose.rewrites import through_float64
from workbench.diagnose.slicing import slice_trace
from workbench.diagnose.starts import starts_of
from workbench.evidence.wording import counted, origin_place

if TYPE_CHECKING:
    from workbench.diagnose.analysis import Analysis, Judged
    from workbench.replay import Replay
    from workbench.replay.trace_events import Event
    from workbench.step.runner import Outcome

__all__ = ["Ended", "Result", "classify", "run_changed", "run_counterfactuals"]

MAX_ORIGINS_TESTED = 1
MAX_TOGETHER = 3
MAX_GENERAL = 2
"""How many changes that are not the cause's own are tried while none made the failure go."""


@dataclass(frozen=True)
class Answer:
    """What one changed run came to.

    Attributes:
        result: The result.
        place: Where it fails instead, when it moved.
        born: The call that made the value where it moved to, when that is known.
    """

    result: Result
    place: str | None = None
    born: Event | None = None


Judge = Callable[[Intervention, bool], Answer | None]
"""Runs a change and compares it with the original, closely or by the gate that trips alone (enough
for a placebo); None when the change cannot be made."""
MAX_ALIKE = 8
"""In how many calls one change is made, where the value is born again by the same op."""


def run_counterfactuals(
    replay: Replay, analysis: Analysis, say: Callable[[str], None], only: str | None = None
) -> list[dict[str, Any]]:
    """Run the counterfactuals of the first origin's cause.

    Args:
        replay: The replay.
        analysis: The analysis, with causes named.
        say: Called with a sentence before each run.
        only: Name of the one intervention to run; None runs all.

    Returns:
        Rows of ``intervention, result, placebo, establishes, does_not_establish`` and what the
        placebo was.
    """
    rows = [] if analysis.growth is None else growth_rows(replay, analysis, say, only)
    reference = analysis.trace.first_bad
    if reference is not None:
        tested = analysis.origins[:MAX_ORIGINS_TESTED]
        judge = _gate_judge(replay, analysis, reference)
    else:
        tested = [judged for _, judged in analysis.absorbed[:MAX_ORIGINS_TESTED]]
        judge = _absorbed_judge(replay, analysis)
    for judged in tested:
        rows += _rows(replay, analysis, judged, judge, say, only)
    several = _together(analysis) if reference is not None else None
    if several is not None and only in (None, several.name) and not _settled(rows):
        say(f"Counterfactual: {several.name}")
        row = _test(analysis, tested[0], several, judge)
        rows += [] if row is None else [row]
    return rows


def _settled(rows: list[dict[str, Any]]) -> bool:
    return any(row["result"] == "gone" and row["placebo"] == "unchanged" for row in rows)


def _together(analysis: Analysis) -> Intervention | None:
    """The first change of each of several independent origins, at once."""
    names: list[str] = []
    changes: list[AtCall] = []
    for judged in analysis.origins[:MAX_TOGETHER]:
        own = [] if judged.cause is None else judged.cause.counterfactuals(judged.case)
        first = next((i for i in own if isinstance(i.change, AtCall)), None)
        if first is None or not isinstance(first.change, AtCall):
            continue
        if not any(first.change.numbers & change.numbers for change in changes):
            names.append(f"{first.name} for {judged.case.base}")
            changes.append(first.change)
    if len(changes) < 2:
        return None
    return Intervention(" and ".join(names), Together(changes))


def _rows(
    replay: Replay,
    analysis: Analysis,
    judged: Judged,
    judge: Judge,
    say: Callable[[str], None],
    only: str | None,
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    own = [] if judged.cause is None else list(judged.cause.counterfactuals(judged.case))
    own += repaired_to_domain(replay)
    names = {intervention.name for intervention in own}
    general = [i for i in general_interventions(replay, judged.case) if i.name not in names]
    for number, intervention in enumerate([*own, *general]):
        if only is not None and intervention.name != only:
            continue
        extra = number - len(own)
        if only is None and extra >= 0 and (_settled(rows) or extra >= MAX_GENERAL):
            break
        say(f"Counterfactual: {intervention.name}")
        row = _test(analysis, judged, intervention, judge)
        if row is not None:
            rows.append(row)
    return rows


def _gate_judge(replay: Replay, analysis: Analysis, reference: Outcome) -> Judge:
    """Compares by the gate that trips first; what went by hiding the value is not gone."""
    before = _absorbed_places(analysis)

    def judge(intervention: Intervention, closely: bool) -> Answer | None:
        ended = run_changed(replay, intervention, reference)
        if ended is None:
            return None
        result = classify(ended, reference)
        if result == "benign_skip":
            return _skip(replay, intervention, reference)
        if result == "gone" and closely:
            hidden = _hidden(replay, intervention, before)
            if hidden is not None:
                return Answer("moved", hidden)
        if result == "unchanged" and closely:
            return _born_elsewhere(replay, analysis, intervention) or Answer(result)
        return Answer(result, _place(ended) if result == "moved" else None)

    return judge


def _born_elsewhere(
    replay: Replay, analysis: Analysis, intervention: Intervention
) -> Answer | None:
    """The same gate trips, but the value it meets is born at another place now: it moved."""
    trace = trace_changed(replay, intervention)
    if trace is None:
        return None
    origins = slice_trace(trace, starts_of(trace)).origins
    events = [trace.graph[o.event] for o in origins if o.leaf is None and o.event >= 0]
    if not events or len(events) < len(origins):
        return None
    first = analysis.origins[0]
    if first.case.event is None or first.origin.leaf is not None:
        return None
    if any(_site(e) == _site(first.case.event) for e in events):
        return None
    born = events[0]
    return Answer("moved", f"{born.op} in {_born_in(born)}", born)


def _born_in(event: Event) -> str:
    """Where an op ran, in the words that are used for an origin."""
    return origin_place({"where": event.where, "module": event.module, "stage": event.stage})


def _site(event: Event) -> tuple[object, ...]:
    """Where a value is born: the torch call in forward, the op and its forward op in backward."""
    if event.node is None:
        return (event.function_call,)
    return event.op, event.module, event.source


def _wherever(judge: Judge, judged: Judged, intervention: Intervention, answer: Answer) -> Tried:
    """Make the same change in further calls, where the same op gives the value next."""
    change, op = intervention.change, judged.case.event.op if judged.case.event is not None else ""
    tried = intervention, answer
    for _ in range(MAX_ALIKE):
        born = tried[1].born
        if not isinstance(change, AtCall) or born is None or born.op != op:
            return tried
        if born.node is not None or born.function_call in change.numbers:
            return tried
        change = AtCall(change.numbers | {born.function_call}, change.rewrite)
        name = f"{intervention.name} in {counted(len(change.numbers), 'call')}"
        wider = replace(intervention, name=name, change=change)
        again = judge(wider, True)
        if again is None:
            return tried
        tried = wider, again
    return tried


Tried = tuple[Intervention, Answer]


def _skip(replay: Replay, intervention: Intervention, reference: Outcome) -> Answer:
    """A skip is benign only when the same backward without the loss scale is finite."""
    unscaled = replace(intervention, conditions={**intervention.conditions, "scale": 1.0})
    ended = run_changed(replay, unscaled, reference)
    if ended is not None and ended.bad is None and not ended.skipped:
        return Answer("benign_skip")
    return Answer("moved", "backward: the gradient is not finite without the loss scale either")


def _hidden(replay: Replay, intervention: Intervention, before: set[str]) -> str | None:
    """A new Inf that was absorbed into a finite number, where the failure seems gone."""
    changed = analyse_changed(replay, intervention)
    if changed is None or changed.trace.first_bad is not None:
        return None  # the traced run says something else than the plain one, which counts
    new = sorted(_absorbed_places(changed) - before)
    return f"absorbed: {new[0]}" if new else None


def _absorbed_places(analysis: Analysis) -> set[str]:
    events = [judged.case.event for _, judged in analysis.absorbed]
    return {f"{e.op} at {e.source or e.module or e.where}" for e in events if e is not None}


def _absorbed_judge(replay: Replay, analysis: Analysis) -> Judge:
    """Compares by whether the same Inf is still absorbed: nothing trips in such a step."""
    before = _absorbed_places(analysis)

    def judge(intervention: Intervention, closely: bool) -> Answer | None:
        changed = analyse_changed(replay, intervention)
        if changed is None:
            return None
        if changed.trace.first_bad is not None:
            return Answer("moved", _place(Ended(changed.trace.first_bad, False)))
        after = _absorbed_places(changed)
        if after & before:
            return Answer("unchanged")
        return Answer("moved", f"absorbed: {sorted(after)[0]}") if after else Answer("gone")

    return judge


def _test(
    analysis: Analysis, judged: Judged, intervention: Intervention, judge: Judge
) -> dict[str, Any] | None:
    answer = judge(intervention, True)
    if answer is None:
        return None
    intervention, answer = _wherever(judge, judged, intervention, answer)
    placebo, placebo_result = None, None
    for candidate in _placebos(analysis, judged, intervention):
        other = judge(candidate, False)
        if other is not None:
            placebo, placebo_result = candidate, other.result
            break
    name = placebo.name if placebo is not None else None
    return row_of(intervention.name, answer.result, answer.place, name, placebo_result)


def row_of(
    name: str, result: Result, place: str | None, placebo: str | None, placebo_result: str | None
) -> dict[str, Any]:
    """One row of findings/1."""
    return {
        "intervention": name,
        "result": result,
        "moved_to": place,
        "placebo": placebo_result,
        "placebo_intervention": placebo,
        "establishes": _establishes(name, result, placebo_result),
        "does_not_establish": (
            "It does not show that this change is a repair: it is a diagnostic condition, and the "
            "original still fails."
        ),
    }


def _placebos(
    analysis: Analysis, judged: Judged, intervention: Intervention
) -> Iterator[Intervention]:
    """The same kind of change elsewhere; else float64 for another call."""
    if intervention.placebo is not None:
        yield intervention.placebo
    for call, name, source in _other_calls(analysis, judged):
        change = AtCall([call], through_float64())
        yield Intervention(f"float64 for {name} at {source or 'another place'}", change, call)


def _other_calls(analysis: Analysis, judged: Judged) -> list[tuple[int, str, str]]:
    """Calls that made none of the bad values, at most four.

    Those without any part in the failure come first, of the same function before others; then those
    whose results reach the origin, whose rounding may matter; then those that only passed the bad
    value on. A call has a part in what its backward does.
    """
    graph = analysis.trace.graph
    makers = {judged.origin.event, *(j.origin.event for j in analysis.origins)}
    own = _calls_of(analysis, makers)
    passing = _calls_of(analysis, set(analysis.slice.visited)) - own
    event = judged.case.event
    function = event.function if event is not None else ""
    seen: dict[int, tuple[int, str, str]] = {}
    for other in graph:
        usable = other.stage in ("forward", "loss") and other.node is None and not other.view
        if not usable or other.function_call < 0 or other.function_call in own:
            continue
        if not other.writes or other.writes[0].stats is None:
            continue
        seen.setdefault(other.function_call, (other.function_call, other.function, other.source))
    before = _calls_of(analysis, _upstream(analysis, makers))
    ordered = sorted(
        seen.values(), key=lambda c: (c[0] in passing, c[0] in before, c[1] != function, c[0])
    )
    return ordered[:4]


def _upstream(analysis: Analysis, events: set[int]) -> set[int]:
    """Every event whose result reaches one of these."""
    graph = analysis.trace.graph
    found: set[int] = set()
    waiting = [index for index in events if 0 <= index < len(graph)]
    while waiting:
        for read in graph[waiting.pop()].reads:
            for producer in read.producers:
                if producer not in found:
                    found.add(producer)
                    waiting.append(producer)
    return found


def _calls_of(analysis: Analysis, events: set[int]) -> set[int]:
    graph = analysis.trace.graph
    found = set()
    for index in events:
        if not 0 <= index < len(graph):
            continue
        found.add(graph[index].function_call)
        forward = graph[index].forward_event
        if forward is not None:
            found.add(graph[forward].function_call)
    return found


def _place(ended: Ended) -> str | None:
    if ended.bad is None:
        return None
    stage, tensor = ended.bad.unit.stage, ended.bad.tensor
    return stage if tensor == stage else f"{stage.replace('_', ' ')}: {tensor}"


def _establishes(name: str, result: Result, placebo: str | None) -> str:
    said = {
        "gone": "the failure is gone",
        "moved": "it fails elsewhere",
        "benign_skip": "only a scaler skip is left, and backward is finite without the loss scale",
        "unchanged": "it fails the same way",
    }[result]
    text = f"With {name}, {said}."
    if result == "unchanged":
        return text
    if placebo == "unchanged":
        return f"{text} The same kind of change elsewhere leaves the failure as it is."
    if placebo is None:
        return f"{text} There was no other place to make the same kind of change at."
    return f"{text} The same kind of change elsewhere has an effect too: this is not specific."
