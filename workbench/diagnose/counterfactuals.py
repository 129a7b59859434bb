"""Test a cause by replay: make one specific change, and the same kind of change elsewhere.

A result is ``gone``, ``moved`` (elsewhere or later), ``benign_skip`` (only a scaler skip is left)
or ``unchanged``. The placebo must stay ``unchanged``, else the change is not specific. All of it is
a diagnostic condition, never a repair (DESIGN rule 10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from workbench.diagnose.interventions import AtCall, Intervention
from workbench.diagnose.rewrites import through_float64
from workbench.errors import WorkbenchError
from workbench.replay.calls import CallMode, unnumbered
from workbench.replay.session import Session

if TYPE_CHECKING:
    from workbench.diagnose.analysis import Analysis, Judged
    from workbench.replay import Replay
    from workbench.step.runner import Outcome

Result = Literal["gone", "moved", "benign_skip", "unchanged"]
MAX_ORIGINS_TESTED = 1


@dataclass(frozen=True)
class Ended:
    """How a changed run ended: the outcome that tripped, or None; whether the scaler will skip."""

    bad: Outcome | None
    skipped: bool


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
    reference = analysis.trace.first_bad
    if reference is None:
        return []
    rows = []
    for judged in analysis.origins[:MAX_ORIGINS_TESTED]:
        for intervention in _interventions(judged):
            if only is not None and intervention.name != only:
                continue
            say(f"Counterfactual: {intervention.name}")
            row = _test(replay, analysis, judged, intervention, reference)
            if row is not None:
                rows.append(row)
    return rows


def _interventions(judged: Judged) -> Sequence[Intervention]:
    if judged.cause is None:
        return ()
    return judged.cause.counterfactuals(judged.case)


def _test(
    replay: Replay,
    analysis: Analysis,
    judged: Judged,
    intervention: Intervention,
    reference: Outcome,
) -> dict[str, Any] | None:
    ended = run_changed(replay, intervention)
    if ended is None:
        return None
    result = classify(ended, reference)
    placebo, placebo_result = None, None
    for candidate in _placebos(analysis, judged, intervention):
        other = run_changed(replay, candidate)
        if other is not None:
            placebo, placebo_result = candidate, classify(other, reference)
            break
    return {
        "intervention": intervention.name,
        "result": result,
        "moved_to": _place(ended) if result == "moved" else None,
        "placebo": placebo_result,
        "placebo_intervention": placebo.name if placebo is not None else None,
        "establishes": _establishes(intervention, result, placebo_result),
        "does_not_establish": (
            "It does not show that this change is a repair: it is a diagnostic condition, and the "
            "original still fails."
        ),
    }


def run_changed(replay: Replay, intervention: Intervention) -> Ended | None:
    """Run the step with one change; None when the change cannot be made here."""
    source = replay.source
    if intervention.batch is not None:
        batches = [intervention.batch(batch) for batch in source.batches]
        source = replace(source, state=replace(source.state, micro_batches=batches))
    try:
        conditions = replay.nearest.replace(**dict(intervention.conditions))
        session = Session(source, conditions)
    except (WorkbenchError, RuntimeError, TypeError, ValueError, IndexError):
        return None  # samples of such a batch cannot be left out, or the condition does not exist
    changes = [intervention.change] if intervention.change is not None else []
    unavailable = source.unavailable()
    skipped = False
    with session.running(), CallMode(changes):
        runner = session.runner
        while (unit := runner.next_unit) is not None and unit.stage not in unavailable:
            outcome = runner.advance(unnumbered)
            if outcome.exception is not None and intervention.change is not None:
                return None  # the change does not fit what the call is used for
            if outcome.status == "bad":
                return Ended(outcome, skipped) if _applied(intervention) else None
            skipped |= outcome.status == "skip"
    return Ended(None, skipped) if _applied(intervention) else None


def _applied(intervention: Intervention) -> bool:
    """Whether the change really was put in."""
    return bool(getattr(intervention.change, "applied", True))


def classify(ended: Ended, reference: Outcome) -> Result:
    """Compare how a changed run ended with how the original one failed."""
    if ended.bad is None:
        return "benign_skip" if ended.skipped else "gone"
    same_stage = ended.bad.unit.stage == reference.unit.stage
    return "unchanged" if same_stage and ended.bad.tensor == reference.tensor else "moved"


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
    that only passed the bad value on.
    """
    graph = analysis.trace.graph
    makers = {j.origin.event for j in analysis.origins}
    own = {graph[i].function_call for i in makers if i >= 0}
    passing = {graph[i].function_call for i in analysis.slice.visited} - own
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
    ordered = sorted(seen.values(), key=lambda c: (c[0] in passing, c[1] != function, c[0]))
    return ordered[:4]


def _place(ended: Ended) -> str | None:
    if ended.bad is None:
        return None
    return f"{ended.bad.unit.stage}: {ended.bad.tensor}"


def _establishes(intervention: Intervention, result: Result, placebo: Result | None) -> str:
    said = {
        "gone": "the failure is gone",
        "moved": "it fails elsewhere",
        "benign_skip": "only a scaler skip is left",
        "unchanged": "it fails the same way",
    }[result]
    text = f"With {intervention.name}, {said}."
    if result == "unchanged":
        return text
    if placebo == "unchanged":
        return f"{text} The same kind of change elsewhere leaves the failure as it is."
    if placebo is None:
        return f"{text} There was no other place to make the same kind of change at."
    return f"{text} The same kind of change elsewhere has an effect too: this is not specific."
