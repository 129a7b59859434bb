"""The grade of one rank that is replayed without the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.replay.result import RunResult
    from workbench.replay.session import Session
    from workbench.replay.source import Source
    from workbench.replay.verdict import Grade


def alone(graded: Grade, source: Source, result: RunResult, session: Session) -> Grade:
    """Grade a rank's run again where the record's failure needs the other ranks.

    Args:
        graded: The grade of the run as it is.
        source: The record.
        result: The run.
        session: Its session.
    """
    if graded.verdict != "not_reproduced" or source.wrap is not None:
        return graded
    if source.bad_elsewhere is not None:
        return graded
    reason = _why_not_alone(source, session)
    if reason is None or result.first_bad is not None:
        return graded
    recorded = source.digests.get("loss_bits")
    same = bool(recorded) and recorded == result.loss_bits
    loss = "the loss has the recorded bits" if same else "the loss was not recorded"
    if recorded and not same:
        loss = "the loss has other bits"
    graded.verdict = "unverifiable"
    own = session.reduction.own
    gradients = "the gradients are finite"
    if own is not None:
        bits = "other bits" if own.unequal else "the recorded bits"
        gradients += f", with {bits} before their reduction"
    graded.unequal = [reason, f"of this rank's own part, {loss} and {gradients}"]
    return graded


def own_part(source: Source, result: RunResult, unequal: list[str]) -> Grade:
    """Grade a rank that was finite and stopped only because another one tripped.

    Args:
        source: The record.
        result: The run.
        unequal: What of the bitwise comparison did not hold.
    """
    from workbench.replay.verdict import Grade

    rank, digests = source.bad_elsewhere, source.digests
    who = "another rank" if rank is None or rank < 0 else f"rank {rank}"
    if not digests.get("loss_bits"):
        why = f"the step was ended by {who}, and this one stopped before it had a loss"
        return Grade("unverifiable", unequal=[why])
    if result.first_bad is not None and not digests.get("masks"):
        return Grade("not_reproduced", unequal=["it was finite there, and is not here", *unequal])
    if unequal:
        return Grade("not_reproduced", unequal=unequal)
    said = f"The step was ended by {who}; this is the own part of a rank that was finite"
    return Grade("bitwise", said=[said])


def _why_not_alone(source: Source, session: Session) -> str | None:
    bad, kinds = source.first_bad, session.reduction.kinds
    if bad is None or source.bundle is None:
        return None
    if bad.stage == "reduce":
        return "the bad gradients came from another rank in the reduction, and are not in here"
    if {"tensor", "dtensor"} & set(kinds):
        return "tensors were split over ranks, and matrix products add up in another order there"
    if "fsdp2" in kinds and bad.sink == "gradient":
        return "this rank holds its part of gradients that all ranks made, and has its own here"
    return None
