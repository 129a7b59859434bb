"""What another rank has to do with an exception of this one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from torch import distributed as dist

from workbench.errors import RankError
from workbench.evidence.wording import clean, joined
from workbench.numerics import jsonio
from workbench.record.ranks.news import Position

if TYPE_CHECKING:
    from workbench.record.ranks.watch import Watch

_COLLECTIVE: Final = re.compile(
    r"gloo|NCCL|Connection (closed|reset)|Timed out waiting|Broken pipe|ProcessGroup|timed out"
)


def explain(watch: Watch, error: BaseException, step: int) -> RankError | None:
    """Find the other rank behind an exception.

    Args:
        watch: News of other ranks.
        error: The exception.
        step: The step it was raised in.

    Returns:
        An error that names the rank, or None where the exception is this rank's own.
    """
    if isinstance(error, RankError):
        return error
    ended = watch.interrupted
    if ended is not None and isinstance(error, RuntimeError):
        return ended
    if not _of_a_collective(error):
        return None
    known = watch.problem()
    if known is not None:
        return known
    text = clean(str(error).removeprefix("Unable to cast ").partition(". ")[0], 160)
    try:
        positions, missing = watch.roll_call()
    except (dist.DistStoreError, RuntimeError):
        return RankError(
            f"A collective failed in step {step} and the job's store does not answer, so the "
            f"process that held it is gone: {text!r}. Look at what ended the first process.",
            None,
            step,
        )
    return _said(watch, text, step, positions, missing)


def _said(
    watch: Watch, text: str, step: int, positions: Mapping[int, Position], missing: Sequence[int]
) -> RankError:
    if missing:
        names = joined([str(rank) for rank in missing], 8)
        message = (
            f"Rank {names} was lost in step {step}: it does not answer any more (killed, out of "
            f"memory, or its machine is gone), and a collective failed: {text!r}. Nothing was "
            "updated here. Look at what ended that rank, then resume all ranks from a checkpoint."
        )
        watch.say("lost", about=missing[0], message=message)
        return RankError(message, missing[0], step, lost=True)
    mine = watch.position
    apart = sorted(r for r, one in positions.items() if one != mine)
    if apart:
        other = apart[0]
        message = (
            f"The ranks are out of step: rank {watch.rank} {watch.here().words()}, rank {other} "
            f"{positions[other].words()}. A collective that not all ranks take part in ran into "
            f"its time-out: {text!r}. Let all ranks skip alike: do not 'continue' on what one "
            "rank sees; the recorder withholds the update on all ranks by itself."
        )
        watch.say("out_of_step", about=other, message=message)
        return RankError(message, other, step)
    return RankError(
        f"A collective failed in step {step} while all ranks answer and stand where this one "
        f"does: {text!r}. The network or the process group's time-out is the first thing to look "
        "at.",
        None,
        step,
    )


def out_of_step(said: Sequence[Mapping[str, Any]]) -> RankError:
    """The error of ranks that came to different decisions, alike on all of them.

    Args:
        said: Position and point of every rank.
    """
    places = [Position.read(jsonio.dumps(one.get("position") or {})) for one in said]
    points = [str(one.get("point")) for one in said]
    wanted = (places[0].step, points[0])
    other = next(
        (r for r in range(len(said)) if (places[r].step, points[r]) != wanted), len(said) - 1
    )
    return RankError(
        f"The ranks are out of step: rank 0 decides about step {places[0].step} "
        f"({points[0]}, after {places[0].stage}), rank {other} about step {places[other].step} "
        f"({points[other]}, after {places[other].stage}). Their updates would not belong together, "
        "so nothing was updated. Run the same steps on all ranks, and let all of them skip alike.",
        other,
        places[other].step,
    )


def _of_a_collective(error: BaseException) -> bool:
    kinds = tuple(
        kind
        for name in ("DistBackendError", "DistNetworkError", "DistStoreError")
        if (kind := getattr(dist, name, None)) is not None
    )
    if isinstance(error, kinds):
        return True
    return isinstance(error, RuntimeError) and _COLLECTIVE.search(str(error)) is not None
