"""One incident of many ranks: what this rank's bundle says of the others, and the incident's file.

The ranks that went bad first write all there is; the others write what their own part of the step
needs, and name the rank whose parameters are the same. Nothing here asks another rank for anything:
it may be dead. What all ranks decided together (``session.decision``) is known already.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor

from workbench.evidence.incidents import SCHEMA, Member, incident_id
from workbench.numerics import jsonio
from workbench.record.parallel import describe_parallel, shards_of_bad
from workbench.record.ranks.place import data_parallel
from workbench.step.digests import sums_of

if TYPE_CHECKING:
    from workbench.record.recorder import Recorder
    from workbench.record.session import Session
    from workbench.record.trip import Trip
    from workbench.step.state import StepState

LIGHT_STATE: int = 32 << 20
"""Bytes of parameters and optimizer state up to which a light bundle has its own."""
MOST_LISTED: Final = 1024
"""Ranks up to which those that were not bad are listed one by one."""
_LOCAL_STAGES: Final = ("input", "forward", "loss")


@dataclass(frozen=True)
class Part:
    """This rank's part of an incident.

    Attributes:
        incident: The identifier that all its bundles share; empty for one process.
        level: ``full`` or ``light``.
        members: The ranks, as far as this one knows.
        decided: Whether the ranks agreed before they wrote.
        lender: The rank whose bundle holds the same parameters; None where none does.
        stages: Why a pipeline's rank does not replay in one process, or None.
    """

    incident: str = ""
    level: str = "full"
    members: tuple[Member, ...] = ()
    decided: bool = False
    lender: int | None = None
    stages: str | None = None


def part_of(recorder: Recorder, session: Session, trip: Trip) -> Part:
    """Find out this rank's part of an incident.

    Args:
        recorder: The recorder.
        session: The recorded step.
        trip: What tripped.
    """
    rank, world = recorder.rank, recorder.world
    if world <= 1:
        return Part()
    name = incident_id(recorder.run_id, session.step_index, world)
    decision = session.decision
    members = _decided(decision, world) if decision else _alone(trip, rank)
    if rank not in {member.rank for member in members}:
        members += [Member(rank, "agreed")]
    if trip.kind != "nonfinite":
        members = [replace(m, role="captured" if m.rank == rank else m.role) for m in members]
    first = [int(r) for r in decision.get("first") or ()]
    light = (bool(first) and rank not in first) or _elsewhere(trip)
    alike = data_parallel(recorder.model) is not None
    lender = min(first) if light and first and alike else None
    members = [_with_bundle(recorder, session, m, first) for m in members]
    ordered = tuple(sorted(members, key=lambda m: m.order))
    level = "light" if light else "full"
    return Part(name, level, ordered, bool(decision), lender, _pipeline(recorder))


def _pipeline(recorder: Recorder) -> str | None:
    stage = recorder.place.parallel.get("pp_rank")
    if stage is None:
        return None
    return (
        f"pipeline stage {stage}: what it computes with comes from the stages before it, and its "
        "gradients from those after it, on other ranks"
    )


def _elsewhere(trip: Trip) -> bool:
    return trip.finding is not None and trip.finding.elsewhere is not None


def _decided(decision: Mapping[str, Any], world: int) -> list[Member]:
    first, said = set(decision.get("first") or ()), decision.get("said") or {}
    members = []
    for rank in decision.get("tripped") or ():
        told = said.get(str(rank)) or {}
        order = told.get("order") or [0, told.get("stage")]
        role, stage = ("first", order[1]) if rank in first else ("received", told.get("stage"))
        members.append(Member(int(rank), role, stage, int(order[0] or 0)))
    bad = {member.rank for member in members}
    if world <= MOST_LISTED:
        members += [Member(rank, "agreed") for rank in range(world) if rank not in bad]
    return members


def _alone(trip: Trip, rank: int) -> list[Member]:
    """What a rank knows that never came to a decision with the others."""
    finding, stage = trip.finding, trip.stage
    if finding is not None and finding.exception is not None:
        return [Member(rank, "raised", stage, trip.unit.micro_step)]
    if finding is not None and finding.elsewhere is not None:
        role = str((finding.told or {}).get("role") or "raised")
        at = stage if role == "raised" else None  # where the others noticed is not where it was
        other = [Member(finding.elsewhere, role, at)] if finding.elsewhere >= 0 else []
        return [*other, Member(rank, "agreed")]
    if trip.kind == "nonfinite":
        return [Member(rank, "first", stage, trip.unit.micro_step)]
    return [Member(rank, "captured")]


def _with_bundle(
    recorder: Recorder, session: Session, member: Member, first: Sequence[int]
) -> Member:
    from workbench.record.incident import bundle_name

    if member.role == "lost":
        return member  # it wrote none any more
    name = bundle_name(recorder.run_id, session.step_index, member.rank, recorder.world)
    level = "light" if first and member.rank not in first else "full"
    return replace(member, bundle=f"{name}.bundle", level=level)


def ranks_content(
    recorder: Recorder, session: Session, trip: Trip, part: Part, state: StepState | None
) -> dict[str, Any]:
    """What goes into ``ranks.json`` of a bundle.

    Args:
        recorder: The recorder.
        session: The recorded step.
        trip: What tripped.
        part: This rank's part.
        state: The state from before the step, or None.
    """
    bad = () if trip.finding is None else trip.finding.bad
    known = {member.rank for member in part.members}
    return _head(recorder, session, part) | {
        "rank": recorder.rank,
        "level": part.level,
        "lender": part.lender,
        "unheard": [] if part.decided else _first_few(recorder.world, known),
        "parallel": describe_parallel(recorder),
        "bad_shards": shards_of_bad(recorder.model, [one.name for one in bad]),
        "sums": state_sums(state),
    }


def _first_few(world: int, known: set[int]) -> list[int]:
    return [rank for rank in range(min(world, MOST_LISTED)) if rank not in known]


def _head(recorder: Recorder, session: Session, part: Part) -> dict[str, Any]:
    rows = []
    for member in part.members:
        row = member.as_dict()
        del row["path"]
        rows.append(row)
    return {
        "schema": SCHEMA,
        "incident": part.incident,
        "run_id": recorder.run_id,
        "step": session.step_index,
        "world": recorder.world,
        "decided": part.decided,
        "decision": {k: v for k, v in session.decision.items() if k != "said"} or None,
        "ranks": rows,
    }


def state_sums(state: StepState | None) -> dict[str, dict[str, int]]:
    """Bit sums of parameters and optimizer state from before the step, by name.

    Ranks of data parallelism hold the same; a tensor split over ranks says nothing of others.
    """
    if state is None:
        return {"parameters": {}, "optimizer": {}}
    model = state.model
    parameters = {} if model is None else {
        name: t for name, t in model.tensors.items()
        if model.info[name].kind == "parameter" and name not in model.shards
    }  # fmt: skip
    entries = {
        f"{name}/{key}": value
        for one in state.optimizers
        for name, of_parameter in one.state.items()
        for key, value in of_parameter.items()
        if isinstance(value, Tensor) and f"{name}/{key}" not in one.shards
    }
    return {"parameters": sums_of(parameters.items()), "optimizer": sums_of(entries.items())}


def lend(part: Part, state: StepState | None, size: int) -> tuple[StepState | None, str | None]:
    """Leave out of a light bundle what another rank's holds, where it is much.

    Args:
        part: This rank's part.
        state: The state from before the step.
        size: Bytes of its parameters and optimizer state.

    Returns:
        The state to write, and what is needed beside the bundle, or None.
    """
    if state is None or state.model is None:
        return state, None
    model = state.model
    if any(not shard.whole for shard in model.shards.values()):
        return state, (
            "needs the bundles of all other ranks beside this one, which holds its part of the "
            "parameters"
        )
    if part.lender is None or size <= LIGHT_STATE or model.shards:
        return state, None
    own = {n for n, info in model.info.items() if info.kind != "parameter"}
    light = replace(
        model,
        tensors={n: t for n, t in model.tensors.items() if n in own},
        info={n: i for n, i in model.info.items() if n in own},
    )
    why = f"needs the bundle of rank {part.lender} beside this one: the parameters are the same"
    return replace(state, model=light, optimizers=[]), why


def keeps_gradients(part: Part, rank: int) -> bool:
    """Whether a rank's bundle has gradients.

    Reduced ones are the same on all ranks, and a rank that went bad before its backward keeps
    none: then the lowest of those that received them does.
    """
    if part.level == "full":
        return True
    early = any(m.role == "first" and m.stage in _LOCAL_STAGES for m in part.members)
    light = [m.rank for m in part.members if m.level == "light"]
    return early and bool(light) and rank == min(light)


def write_incident_file(
    recorder: Recorder, session: Session, part: Part, directory: Path
) -> Path | None:
    """Write the file that names all ranks of an incident; the lowest rank that can keeps it.

    A rank makes it where there is none and replaces that of a higher rank, so that one of a lower
    rank is never lost and one of a dead rank is not missed.

    Args:
        recorder: The recorder.
        session: The recorded step.
        part: This rank's part.
        directory: Where bundles go.

    Raises:
        OSError: The disk does not take it.
    """
    from workbench.record.incident import bundle_name

    if not part.incident:
        return None
    stem = bundle_name(recorder.run_id, session.step_index, 0, 1)
    path = directory / f"{stem}.incident.json"
    content = _head(recorder, session, part) | {"written_by": recorder.rank}
    draft = directory / f".{path.name}.{recorder.rank}.{secrets.token_hex(4)}"
    draft.write_text(jsonio.dumps(content, indent=1) + "\n", encoding="utf-8")
    try:
        try:
            os.link(draft, path)
        except FileExistsError:
            if _written_by(path) > recorder.rank:
                draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def _written_by(path: Path) -> int:
    found = jsonio.loads(path.read_bytes())
    value = found.get("written_by") if isinstance(found, Mapping) else None
    return value if isinstance(value, int) else 1 << 62
