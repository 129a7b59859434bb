"""One cell of a sweep: a step run under one set of conditions, in whatever process calls this."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.diagnose.mask_sets import Packed, pack_masks
from workbench.diagnose.slicing import slice_trace
from workbench.diagnose.starts import starts_of
from workbench.errors import WorkbenchError
from workbench.replay import Replay
from workbench.replay.trace_sinks import find_sink

if TYPE_CHECKING:
    from workbench.evidence import Conditions
    from workbench.evidence.schema import FirstBad
    from workbench.replay import RunResult
    from workbench.replay.session import Session

Data = dict[str, Any]
_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True)
class Task:
    """What one cell runs; plain enough for any executor.

    Attributes:
        bundle: Path of the bundle.
        step: The training step, as ``Replay`` takes it.
        trust: As ``Replay`` takes it.
        arguments: ``conditions`` (changes by name), ``repeats``, ``trace``, ``until``.
    """

    bundle: str
    step: Any
    trust: str | None
    arguments: Mapping[str, Any]


def run_task(task: Task) -> Data:
    """Run one cell in this process; whatever stops it becomes its result.

    One at a time: conditions are settings of the whole process, and so is the state of random
    numbers, so that two cells in two threads would run under a mixture.
    """
    try:
        with _ONE_AT_A_TIME:
            replay = Replay(task.bundle, step=task.step, trust=task.trust)
            return run_cell(replay, task.arguments, lambda event: None)
    except WorkbenchError as error:
        return stopped("error", str(error))
    except Exception as error:  # noqa: BLE001 - user code may raise anything; the table says so
        return stopped("error", f"{type(error).__name__}: {error}")


def stopped(result: str, message: str) -> Data:
    """Data of a cell that did not come to its end: ``error``, ``died`` or ``stopped``."""
    return {
        "result": result,
        "error": message,
        "runs": [],
        "masks": None,
        "original_after": None,
        "origin": None,
    }


def run_cell(
    replay: Replay, arguments: Mapping[str, Any], emit: Callable[[dict[str, Any]], None]
) -> Data:
    """Run a step under changed conditions, some times over, and the original again after it.

    Args:
        replay: The replay.
        arguments: ``conditions``: changes by name; ``repeats``: how often; ``trace``: whether to
            name the origin with one more, traced run; ``until``: last stage, or None.
        emit: Sends an event to the parent process.

    Returns:
        ``result`` (see `judged`; ``varies`` where runs differ), ``runs``, ``masks`` (packed, of the
        first run), ``original_after`` where a diagnostic cell came out finite, and ``origin``.
    """
    conditions = replay.nearest.replace(**dict(arguments.get("conditions") or {}))
    until = arguments.get("until")
    repeats = max(1, int(arguments.get("repeats") or 1))
    runs, packed = [], None
    for number in range(repeats):
        emit({"event": "progress", "text": f"Run {number + 1:,} of {repeats:,}"})
        result, session = _run(replay, conditions, until)
        if number == 0:
            packed = bad_masks(session)
        runs.append(_run_data(replay, result))
    results = {run["result"] for run in runs}
    data: Data = {
        "result": runs[0]["result"] if len(results) == 1 else "varies",
        "error": None,
        "runs": runs,
        "masks": packed,
        "original_after": None,
        "origin": None,
    }
    if conditions != replay.nearest and any(run["tensor"] is None for run in runs):
        after, _ = _run(replay, replay.nearest, until)
        data["original_after"] = _run_data(replay, after)
    if arguments.get("trace"):
        data["origin"] = _origin(replay, conditions)
    return data


def _run(replay: Replay, conditions: Conditions, until: str | None) -> tuple[RunResult, Session]:
    result = replay.run(until=until, conditions=conditions)
    session = replay.session
    assert session is not None  # noqa: S101 - run() has just opened it
    return result, session


def _run_data(replay: Replay, result: RunResult) -> Data:
    bad = result.first_bad or {}
    skipped = any(stage.status == "skip" for stage in result.stages)
    return {
        "result": judged(replay.source.first_bad, result.first_bad, skipped),
        "verdict": result.verdict,
        "stage": bad.get("stage"),
        "tensor": bad.get("tensor"),
        "counts": bad.get("counts"),
        "loss": result.loss,
        "loss_bits": result.loss_bits,
        "seconds": result.seconds,
        "without_effect": result.without_effect,
        "read_back": result.read_back,
        "stages": {stage.stage: stage.status for stage in result.stages},
        "notes": result.notes,
    }


def judged(recorded: FirstBad | None, here: Mapping[str, Any] | None, skipped: bool) -> str:
    """Put a run beside the record in the words of a counterfactual's result.

    Args:
        recorded: What was caught in the record, or None.
        here: What was first bad in this run, or None.
        skipped: Whether a loss scaler's own skip is left.

    Returns:
        ``gone``, ``benign_skip`` (gone but for a skip), ``unchanged`` (caught at the same stage and
        tensor, or finite like the record), ``moved`` (another stage or tensor), or ``appears``
        (the record is finite).
    """
    fails = recorded is not None and recorded.sink != "alert"
    if not fails:
        return "unchanged" if here is None else "appears"
    if here is None:
        return "benign_skip" if skipped else "gone"
    assert recorded is not None  # noqa: S101 - it fails
    same = (here["stage"], here["tensor"]) == (recorded.stage, recorded.tensor)
    return "unchanged" if same else "moved"


def bad_masks(session: Session) -> Packed | None:
    """Pack the non-finite sets of the gate that tripped first; empty when none did."""
    bad = next((o for o in session.outcomes if o.status == "bad"), None)
    if bad is None:
        return {}
    if bad.exception is not None:
        return pack_masks([(bad.tensor or "exception", None)])
    found = [(sink.name, find_sink(session.runner, sink)) for sink in bad.bad]
    if any(tensor is None for _, tensor in found):
        return None
    return pack_masks(found)


def _origin(replay: Replay, conditions: Conditions) -> Data | None:
    """The origin by one traced run: a hint where the failure does not survive being traced."""
    trace = replay.trace(conditions=conditions, exponents=False)
    origins = slice_trace(trace, starts_of(trace)).origins
    if not origins:
        return None
    first = origins[0]
    if first.leaf is not None:
        place = first.kind.removeprefix("poisoned_")
        return {"kind": first.kind, "op": None, "where": place, "module": first.leaf, "source": ""}
    event = trace.graph[first.event]
    return {
        "kind": first.kind,
        "op": event.op,
        "where": event.where,
        "module": event.module,
        "source": event.source,
    }
