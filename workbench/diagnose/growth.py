"""Growth: values that grew rather than jumped, seen by looking back from a range overflow.

Only a range overflow makes growth an origin (DESIGN rule 2, *Growth*). The kept steps before it are
compared: a step is out of proportion when its update of some parameter is a hundred times larger
than the parameter was. Parameters near zero are measured against the model's typical size, so that
a zero-initialised bias or adapter is no growth.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from workbench.diagnose.analysis import Analysis, Judged
from workbench.diagnose.case import Case, ancestors
from workbench.diagnose.causes import name_cause
from workbench.diagnose.slicing import Origin, Slice
from workbench.errors import WorkbenchError
from workbench.replay import Replay
from workbench.replay.trajectory import replay_trajectory
from workbench.step import read_state

if TYPE_CHECKING:
    from workbench.evidence import Bundle
    from workbench.replay.envelope import Outlier
    from workbench.replay.trace import Trace
    from workbench.step.state import StepState

OUT_OF_PROPORTION = 100.0
"""Update over parameter, both as root mean square, from which a step counts as out of proportion:
less than two digits of what the parameter was survive it."""

MOST_STEPS = 64
"""Kept steps that are replayed to see where values began to grow."""

INDEX = "trajectory/index.json"


@dataclass(frozen=True)
class Departure:
    """The step whose update was out of proportion.

    Attributes:
        step: Its number.
        parameter: The parameter that moved most.
        ratio: Root mean square of its update over that of the parameter before.
    """

    step: int
    parameter: str
    ratio: float


@dataclass
class Growth:
    """A growth origin with the trace of the step that made it."""

    departure: Departure
    judged: Judged
    trace: Trace


def look_back(bundle: Bundle, replay: Replay, analysis: Analysis) -> Growth | None:
    """Look back from a range overflow over the kept steps.

    Args:
        bundle: The bundle.
        replay: Its replay, for the step's code and the state the incident began with.
        analysis: The analysis of the incident's own step.

    Returns:
        The growth, or None when the origin is no overflow or no kept step is out of proportion.
    """
    if not analysis.origins or analysis.origins[0].case.range != "overflow":
        return None
    if not bundle.has(INDEX):
        return None
    states = [*_kept_states(bundle), replay.source.state]
    found = departure(states)
    if found is None:
        return None
    return _trace_departure(replay, states, found)


def first_left(bundle: Bundle, replay: Replay, analysis: Analysis) -> Outlier | None:
    """Where, on the way to a range overflow, a value first left its usual envelope.

    Args:
        bundle: The bundle.
        replay: Its replay.
        analysis: The analysis of the incident's own step.

    Returns:
        The step and parameter, by replaying the kept steps; None where the origin is no overflow
        or no way was kept, or more steps than are replayed for this.
    """
    overflow = any(judged.case.range == "overflow" for judged in analysis.origins)
    if not overflow or not bundle.has(INDEX):
        return None
    if len(bundle.json(INDEX).get("steps", [])) > MOST_STEPS:
        return None
    try:
        return replay_trajectory(bundle, replay.source).outlier
    except WorkbenchError:
        return None  # the way cannot be replayed; the step itself was


def departure(states: list[StepState]) -> Departure | None:
    """Find the first kept step whose update was out of proportion.

    Args:
        states: States from before consecutive steps, oldest first.
    """
    for before, after in pairwise(states):
        if before.model is None or after.model is None:
            continue
        if after.step_index != before.step_index + 1:
            continue
        name, ratio = _largest_move(_parameters(before), _parameters(after))
        if ratio >= OUT_OF_PROPORTION:
            return Departure(before.step_index, name, ratio)
    return None


def _kept_states(bundle: Bundle) -> list[StepState]:
    listed = bundle.json(INDEX).get("steps", [])
    return [read_state(bundle, entry["prefix"]) for entry in listed if entry["recovery_point"]]


def _parameters(state: StepState) -> dict[str, torch.Tensor]:
    if state.model is None:
        return {}
    info = state.model.info
    return {n: t for n, t in state.model.tensors.items() if info[n].kind == "parameter"}


def _largest_move(
    before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]
) -> tuple[str, float]:
    typical = _rms(list(before.values()))
    worst, largest = "", 0.0
    for name, old in before.items():
        new = after.get(name)
        if new is None or new.shape != old.shape or not old.is_floating_point():
            continue
        moved = _rms([new.to(torch.float64) - old.to(torch.float64)])
        size = max(_rms([old]), typical)
        ratio = moved / size if size > 0 else 0.0
        if ratio > largest:
            worst, largest = name, ratio
    return worst, largest


def _rms(tensors: list[torch.Tensor]) -> float:
    elements = sum(t.numel() for t in tensors)
    if elements == 0:
        return 0.0
    squares = sum(float(t.detach().to(torch.float64).square().sum()) for t in tensors)
    return float((squares / elements) ** 0.5)


def _trace_departure(replay: Replay, states: list[StepState], found: Departure) -> Growth | None:
    """Trace the step that departed and name the op that wrote the parameter."""
    state = next(s for s in states if s.step_index == found.step)
    source = replace(replay.source, state=state, kind="captured", first_bad=None, bundle=None)
    earlier = Replay.from_source(source)
    trace = earlier.trace(until="logging", exponents=False)
    index = _writer(trace, found.parameter)
    if index is None or not _made_by_update(trace, index, state, found.parameter):
        return None
    keep = {index, *ancestors(trace, index)}
    again = earlier.kept(keep, until="logging")
    kept = again.events if again.same_events(trace) else {}
    facts: dict[str, Any] = {
        "scale": trace.scale,
        "growth": found.ratio,
        "gradient_ratio": _gradient_ratio(replay, states, found.step),
    }
    case = Case(trace, Slice(chain=[index]), Origin("growth", index), kept, facts=facts)
    return Growth(found, Judged(case, name_cause(case)), trace)


def _gradient_ratio(replay: Replay, states: list[StepState], step: int) -> float:
    """The step's gradient norm over the median of the recorded steps before it; 0 if unknown."""
    bundle = replay.source.bundle
    records = bundle.ledger() if bundle is not None and bundle.has("ledger.jsonl") else []
    norms: dict[int, float] = {
        r["step"]: float(r["grad_norm"])
        for r in records
        if isinstance(r.get("step"), int) and isinstance(r.get("grad_norm"), float | int)
    }
    earlier = sorted(
        norms[s.step_index] for s in states if s.step_index < step and s.step_index in norms
    )
    if step not in norms or not earlier:
        return 0.0
    usual = earlier[len(earlier) // 2]
    return norms[step] / usual if usual > 0 else 0.0


def _made_by_update(trace: Trace, index: int, state: StepState, parameter: str) -> bool:
    """Whether the replayed update itself moved the parameter so far.

    Between two kept steps something else may have written to it (a checkpoint loaded, weights
    pruned or averaged): that is no growth.
    """
    before = _parameters(state)
    size = max(_rms([before[parameter]]), _rms(list(before.values())))
    stats = [w.stats for w in trace.graph[index].writes if w.stats is not None]
    after = max((s.mean_square or 0.0) ** 0.5 for s in stats) if stats else 0.0
    return size == 0.0 or after >= OUT_OF_PROPORTION / 2 * size


def _writer(trace: Trace, parameter: str) -> int | None:
    """The last op of the update that wrote a parameter."""
    storages = {
        read.storage
        for event in trace.graph
        for read in event.reads
        if read.leaf == ("poisoned_parameter", parameter)
    }
    for event in reversed(trace.graph):
        if event.stage == "update" and any(w.storage in storages for w in event.writes):
            return event.index
    return None
