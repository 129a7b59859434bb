"""Sum up a session as the plain data that a run leaves behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from workbench.replay import sentences
from workbench.replay.effects import idle
from workbench.replay.plan import recorded_stop
from workbench.replay.result import RunResult, StageState
from workbench.replay.verdict import grade
from workbench.step.values import scalar

if TYPE_CHECKING:
    from workbench.replay.session import Session


def run_result(session: Session, stages: Sequence[StageState], *, original: bool) -> RunResult:
    """Sum up what a session has run so far.

    Args:
        session: The session, with at least one unit run.
        stages: Its ten stages.
        original: Whether it ran under the recorded conditions, or the nearest ones there are here:
            then it is graded against the record, once it has come as far as the record.
    """
    seen = session.observed
    result = RunResult(
        conditions=session.conditions.as_dict(),
        diagnostic=bool(session.changed),
        changed={key: _plain(value) for key, value in session.changed.items()},
        read_back=seen.read_back,
        without_effect=idle(session),
        stages=list(stages),
        loss=scalar(seen.loss),
        loss_bits=session.loss_bits,
        first_bad=first_bad(session),
        gradients=seen.gradients,
        masks={name: mask for state in stages for name, mask in state.masks.items()},
        rng=session.rng_digest,
        seconds=seen.seconds,
        until=session.outcomes[-1].unit.stage,
        notes=_notes(session),
    )
    reached = session.runner.position >= recorded_stop(session.runner, session.source)
    if not original or not (reached or result.first_bad):
        return result
    verdict = grade(session.source, result, session).verdict
    return msgspec.structs.replace(result, verdict=verdict)


def first_bad(session: Session) -> dict[str, Any] | None:
    """The first thing that was bad, in the batch or at a gate, as plain data."""
    seen = session.input_state
    if seen.status == "bad" and session.outcomes:
        where = {"stage": "input", "micro_step": 0, "phase": session.outcomes[0].unit.phase}
        return where | {"tensor": seen.tensor, "counts": seen.counts}
    bad = next((outcome for outcome in session.outcomes if outcome.status == "bad"), None)
    if bad is None:
        return None
    return {
        "stage": bad.unit.stage,
        "micro_step": bad.unit.micro_step,
        "phase": bad.unit.phase,
        "tensor": bad.tensor,
        "counts": bad.bad[0].counts.as_dict() if bad.bad else None,
    }


def _notes(session: Session) -> list[str]:
    found = [sentences.CUDA_GRAPH] if _holds_cuda_graph(session) else []
    here, there = (torch.device(c.device).type for c in (session.conditions, session.recorded))
    if there == "cuda" and here == "cpu":
        found.append(sentences.CUDA_ON_CPU)
    return found


def _holds_cuda_graph(session: Session) -> bool:
    """Whether the step or a module holds a captured CUDA graph as an attribute."""
    owners = (session.source.step, *session.runner.model.modules())
    held = (value for owner in owners for value in vars(owner).values())
    return any(isinstance(value, torch.cuda.CUDAGraph) for value in held)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
