"""Whether a scaler skip was benign: the same backward without the loss scale, replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.errors import WorkbenchError
from workbench.replay.session import Session

if TYPE_CHECKING:
    from workbench.replay import Replay
    from workbench.replay.trace import Trace
    from workbench.step.runner import Outcome

NAME = "a loss scale of 1"


def skipped(trace: Trace) -> bool:
    """Whether the scaler skipped the update of the traced step, and nothing else tripped."""
    statuses = [outcome.status for outcome in trace.outcomes]
    return "skip" in statuses and "bad" not in statuses


def without_scale(replay: Replay) -> tuple[dict[str, Any] | None, Outcome | None]:
    """Replay the step with a loss scale of 1.

    Args:
        replay: The replay of a step that the scaler skipped.

    Returns:
        A row for ``counterfactuals``, or None where it cannot be run; and the outcome that was
        non-finite without the scale, or None when everything was finite.
    """
    ended = _run(replay)
    if ended is None:
        return None, None
    bad = None if isinstance(ended, bool) else ended
    kept = _other(replay)
    result = "benign_skip" if bad is None else "unchanged"
    what = (
        "the gradients are finite: the skip is the scaler's normal work"
        if bad is None
        else f"{bad.unit.stage}: {bad.tensor} is non-finite all the same"
    )
    return {
        "intervention": NAME,
        "result": result,
        "moved_to": None,
        "placebo": kept,
        "placebo_intervention": None if kept is None else "the recorded loss scale, once more",
        "establishes": f"With {NAME}, {what}.",
        "does_not_establish": (
            "It does not show that the scale settles: steps after this one were not run."
        ),
    }, bad


def _run(replay: Replay, scale: float | None = 1.0) -> Outcome | bool | None:
    """The outcome that tripped or was skipped, False where none was, None where it cannot run."""
    try:
        conditions = replay.nearest if scale is None else replay.nearest.replace(scale=scale)
        session = Session(replay.source, conditions)
    except (WorkbenchError, RuntimeError, TypeError, ValueError):
        return None
    if scale is not None and any(one.get("key") == "scale" for one in session.no_effect):
        return None
    runner = session.runner
    unavailable = replay.source.unavailable()
    while (unit := runner.next_unit) is not None and unit.stage not in unavailable:
        if unit.stage in ("clip", "update"):
            break
        outcome = session.advance()
        if outcome.exception is not None:
            return None
        if outcome.status in ("bad", "skip"):
            return outcome
    return False


def _other(replay: Replay) -> str | None:
    """Whether the recorded scale, run the same way, is still skipped."""
    again = _run(replay, None)
    return None if again is None else ("unchanged" if again is not False else "gone")
