"""Whether all ranks decided alike, from this bundle and the bundles of other ranks beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workbench.diagnose.across import across
from workbench.errors import BundleError
from workbench.evidence.incidents import siblings
from workbench.evidence.wording import joined, number

if TYPE_CHECKING:
    from workbench.evidence import Bundle

MOST_RANKS = 4096
_UPDATED = "attempted", "updated", "skipped_by"


def ranks_answer(bundle: Bundle, findings: Mapping[str, Any]) -> tuple[str, str]:
    """Say what is known of the decision of every rank.

    Args:
        bundle: The bundle of one rank; those of others are looked for in its folder.
        findings: ``workbench.findings/1`` data, or empty.

    Returns:
        The sentence, and what it rests on.
    """
    world, rank = bundle.manifest.world, bundle.manifest.rank
    if world <= 1:
        return (
            "One process: there was no other rank to decide otherwise.",
            "world in manifest.json",
        )
    decisions = {rank: decision(bundle)} | _beside(bundle)
    missing = [number(r) for r in range(min(world, MOST_RANKS)) if r not in decisions]
    unknown = [number(r) for r, made in sorted(decisions.items()) if made is None]
    made = {r: one for r, one in decisions.items() if one is not None}
    contamination = findings.get("contamination")
    carried = isinstance(contamination, Mapping) and contamination.get("collective") is True
    tail = " A collective carried the bad value to other ranks." if carried else ""
    text = _compare(made)
    found = across(bundle)
    lost = found is not None and any(m.role == "lost" for m in found.incident.members)
    if found is not None and (lost or found.incident.first or found.received or found.desync):
        text = " ".join([text, *found.sentences])
    if missing:
        text += f" Not read: {_ranks(missing)}; no bundle of theirs lies beside this one."
    if unknown:
        text += f" Not recorded for {_ranks(unknown)}."
    seen = joined([f"rank {number(r)}" for r in sorted(made)], 4)
    return f"{text}{tail}", f"the ledger record of step {number(bundle.manifest.step)} of {seen}"


def decision(bundle: Bundle) -> tuple[Any, ...] | None:
    """What one rank decided about the update of the incident's step; None where not recorded.

    Returns:
        Per optimizer whether it was attempted, whether it updated, and what skipped it.
    """
    try:
        records = bundle.ledger()
    except BundleError:
        return None
    mine = [r for r in records if r.get("step") == bundle.manifest.step]
    optimizers = mine[-1].get("optimizers") if mine else None
    if not isinstance(optimizers, list):
        return None
    rows = [one for one in optimizers if isinstance(one, Mapping)]
    return tuple(tuple(str(one.get(key)) for key in _UPDATED) for one in rows)


def _beside(bundle: Bundle) -> dict[int, tuple[Any, ...] | None]:
    """Decisions of other ranks of the same incident, by rank."""
    own = bundle.manifest.rank
    return {rank: decision(other) for rank, other in siblings(bundle).items() if rank != own}


def _compare(made: Mapping[int, tuple[Any, ...]]) -> str:
    if not made:
        return "Not known: no rank's decision about the update was recorded."
    groups: dict[tuple[Any, ...], list[str]] = {}
    for rank in sorted(made):
        groups.setdefault(made[rank], []).append(number(rank))
    if len(groups) == 1:
        (one, ranks) = next(iter(groups.items()))
        if len(ranks) == 1:
            return f"Known of rank {ranks[0]} alone: {_words(one)}."
        return f"Alike on {_ranks(ranks)}: {_words(one)}."
    said = [f"{_ranks(ranks)}: {_words(one)}" for one, ranks in groups.items()]
    return f"No: {'; '.join(said)}. Parameters of these ranks are no longer equal."


def _ranks(names: list[str]) -> str:
    return f"{'rank' if len(names) == 1 else 'ranks'} {joined(names, 8)}"


def _words(made: tuple[Any, ...]) -> str:
    """``the update was made``, ``skipped by scaler`` …, of one optimizer or of several."""
    if not made:
        return "no update was attempted"
    said = []
    for attempted, updated, skipped_by in made:
        if updated in ("yes", "True"):
            said.append("the update was made")
        elif skipped_by not in ("none", "None"):
            said.append(f"the update was skipped by the {skipped_by}")
        elif attempted == "True":
            word = (
                "changed nothing" if updated == "nothing_changed" else "whether it was made is open"
            )
            said.append(f"the update was attempted, {word}")
        else:
            said.append("no update was attempted")
    return joined(list(dict.fromkeys(said)))
