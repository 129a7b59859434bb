"""What a bad value reached before training stopped: parameters, moments, buffers, and beyond.

Read from the replayed state and from the record. None says that it is not known, and ``reasons``
says why: what was not recorded is not claimed to be clean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workbench.errors import WorkbenchError
from workbench.evidence.incidents import ranks_file
from workbench.replay.session import Session
from workbench.replay.trace import contaminated

if TYPE_CHECKING:
    from workbench.diagnose.analysis import Analysis
    from workbench.evidence import Bundle
    from workbench.replay import Replay

KEYS = ("parameters", "optimizer_state", "buffers")
_KINDS = {"parameter": "parameters", "optimizer_state": "optimizer_state", "buffer": "buffers"}
_COLLECTIVES = ("c10d.", "_c10d_functional.", "c10d_functional.")


def contamination(
    bundle: Bundle, analysis: Analysis | None, replay: Replay | None = None
) -> dict[str, Any]:
    """Say what holds bad values.

    Args:
        bundle: The bundle.
        analysis: The analysis of the traced step, or None when nothing was replayed.
        replay: The replay, to run on through an update that the run made too.

    Returns:
        ``parameters``, ``optimizer_state``, ``buffers`` and ``checkpoints`` as lists of names or
        None; ``collective`` as a truth value or None; and ``reasons`` for what is None.
    """
    evidence = _evidence(bundle)
    recorded = _recorded(evidence)
    found: dict[str, Any] = dict.fromkeys(KEYS)
    reasons: dict[str, str] = {}
    updated = update_was_made(evidence)
    seen = None if analysis is None else analysis.trace.contaminated
    if seen is not None and updated and replay is not None and _stopped_early(analysis):
        seen = after_update(replay)
        if seen is None:
            reasons |= dict.fromkeys(
                KEYS, "the run made this update, and it cannot be replayed to its end here"
            )
    elif analysis is None and replay is not None:  # finite here, and stopped with other ranks
        seen = after_update(replay) if updated else before_update(replay)
    if seen is not None:
        for key in KEYS:
            found[key] = list(dict.fromkeys([*seen.get(key, []), *recorded.get(key, [])]))
    elif analysis is None:
        found |= {key: names for key, names in recorded.items() if names}
        reasons |= {key: "not replayed" for key in KEYS if found[key] is None}
    found["collective"], why = _collective(bundle, analysis)
    if why:
        reasons["collective"] = why
    held = any(found[key] for key in KEYS)
    replayed = analysis is not None or seen is not None
    found["checkpoints"] = [] if replayed and not held and not updated else None
    kept = evidence.get("checkpoints")
    if isinstance(kept, Mapping):
        near = [one for one in kept.get("near") or [] if isinstance(one, Mapping)]
        bad = [str(one.get("name")) for one in near if one.get("state") == "quarantined"]
        found["checkpoints"] = bad or found["checkpoints"]
    if found["checkpoints"] is None:
        reasons["checkpoints"] = "no later checkpoint was recorded with this bundle"
    return found | {"reasons": reasons}


def update_was_made(evidence: Mapping[str, Any]) -> bool:
    """Whether the run made the update of the incident's step, by the record."""
    update = evidence.get("update")
    made = update.get("optimizers") if isinstance(update, Mapping) else None
    rows = [one for one in made if isinstance(one, Mapping)] if isinstance(made, list) else []
    return any(one.get("attempted") and one.get("updated") != "no" for one in rows)


def after_update(replay: Replay) -> dict[str, list[str]] | None:
    """Run the step on through its update, as the run did, and look at what it left.

    Returns:
        Names by ``parameters``, ``optimizer_state`` and ``buffers``; None where it cannot be run.
    """
    return None if "update" in replay.source.unavailable() else _until(replay, "logging")


def before_update(replay: Replay) -> dict[str, list[str]] | None:
    """Run the step up to its update, which the run did not make, and look at what is there.

    Returns:
        Names by ``parameters``, ``optimizer_state`` and ``buffers``; None where it cannot be run.
    """
    return None if "clip" in replay.source.unavailable() else _until(replay, "update")


def _until(replay: Replay, stage: str) -> dict[str, list[str]] | None:
    """What is bad before a stage of the step; None where it does not come so far here."""
    try:
        session = Session(replay.source, replay.nearest)
        while (unit := session.runner.next_unit) is not None and unit.stage != stage:
            if session.advance().exception is not None:
                return None
    except (WorkbenchError, RuntimeError):
        return None
    return contaminated(session.runner)


def _stopped_early(analysis: Analysis | None) -> bool:
    """Whether the traced replay ended before the update was made."""
    outcomes = [] if analysis is None else analysis.trace.outcomes
    return not any(outcome.unit.stage == "update" for outcome in outcomes)


def _evidence(bundle: Bundle) -> Mapping[str, Any]:
    found = bundle.evidence() if bundle.has("evidence.json") else {}
    return found if isinstance(found, Mapping) else {}


def _recorded(evidence: Mapping[str, Any]) -> dict[str, list[str]]:
    """Names that the recorder's own gates found bad."""
    found: dict[str, list[str]] = {key: [] for key in KEYS}
    bad = evidence.get("bad")
    for one in bad if isinstance(bad, list) else []:
        if isinstance(one, Mapping) and str(one.get("kind")) in _KINDS:
            name = str(one.get("name", "")).partition(":")[2]
            found[_KINDS[str(one["kind"])]].append(name)
    return found


def _collective(bundle: Bundle, analysis: Analysis | None) -> tuple[bool | None, str]:
    if bundle.manifest.world <= 1:
        return False, ""
    reached = _bad_after_reduction(bundle)
    if reached is not None:
        return reached, ""
    if analysis is not None:
        graph = analysis.trace.graph
        if any(e.op.startswith(_COLLECTIVES) and e.bad_reads for e in graph):
            return True, ""
    return None, "collectives of other ranks are not recorded and not replayed here"


def _bad_after_reduction(bundle: Bundle) -> bool | None:
    """Whether gradients were bad after they were reduced, by the record; None where it is open."""
    parallel = ranks_file(bundle).get("parallel")
    kinds = parallel.get("kinds") if isinstance(parallel, Mapping) else None
    if not {"ddp", "fsdp2"} & set(map(str, kinds if isinstance(kinds, list) else ())):
        return None
    said = _evidence(bundle)
    reduce, decision = said.get("reduce"), said.get("decision")
    if isinstance(reduce, Mapping) and reduce.get("contaminated") is True:
        return True
    if isinstance(decision, Mapping) and isinstance(decision.get("bad_after_reduction"), list):
        return bool(decision["bad_after_reduction"])
    return None
