"""One incident of several ranks: their bundles, who went bad first, and who is absent.

Every rank's bundle holds ``ranks.json``: what that rank knew of the others when it wrote. Bundles
of one incident share an identifier that is made of run, step and number of ranks, so that they
belong together wherever they were written. Order is by step, stage and rank, never by clocks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from workbench.errors import BundleError
from workbench.evidence.reader import open_bundle
from workbench.evidence.schema import MOST_RANKS, is_rank
from workbench.evidence.stages import stage_code
from workbench.evidence.wording import clean, counted, joined, number

if TYPE_CHECKING:
    from workbench.evidence.reader import Bundle

SCHEMA: Final = "workbench.incident/1"
RANKS: Final = "ranks.json"
ROLES: Final = {
    "first": "bad first",
    "received": "received it in the reduction",
    "raised": "raised",
    "lost": "was lost",
    "agreed": "finite, stopped with the others",
    "captured": "captured",
    "unknown": "not heard of",
}
"""What a rank had to do with an incident, in words."""


def incident_id(run_id: str, step: int, world: int) -> str:
    """``"IN-"`` and 12 hex digits: the same on every rank, without asking any of them."""
    text = f"{run_id}\0{step}\0{world}"
    return "IN-" + hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


@dataclass(frozen=True)
class Member:
    """One rank of an incident.

    Attributes:
        rank: The rank.
        role: A key of ``ROLES``.
        stage: Where it was bad, or None.
        micro_step: Accumulation step of that.
        level: ``full`` or ``light``; empty where it has no bundle.
        bundle: Name of its bundle, or empty.
        path: Where that bundle lies, None when it is not beside the one that was opened.
    """

    rank: int
    role: str = "unknown"
    stage: str | None = None
    micro_step: int = 0
    level: str = ""
    bundle: str = ""
    path: Path | None = None

    @property
    def order(self) -> tuple[int, int, int, int]:
        """By stage, micro-step and rank; those that were not bad come last."""
        bad = self.role in ("first", "received", "raised", "lost")
        return (0 if bad else 1, stage_code(self.stage), self.micro_step, self.rank)

    def as_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return {
            "rank": self.rank,
            "role": self.role,
            "stage": self.stage,
            "micro_step": self.micro_step,
            "level": self.level,
            "bundle": self.bundle,
            "path": None if self.path is None else str(self.path),
        }

    def words(self) -> str:
        """``rank 1: received it in the reduction (at reduce)``."""
        at = f" at {self.stage}" if self.stage else ""
        return f"rank {number(self.rank)}: {ROLES.get(self.role, self.role)}{at}"


@dataclass(frozen=True)
class Incident:
    """The ranks of one incident, as far as one bundle and those beside it tell.

    Attributes:
        id: The identifier that its bundles share.
        run_id: The run.
        step: The step.
        world: How many ranks train together.
        members: All ranks that are known of, first bad ones first.
        decided: Whether the ranks agreed before they wrote.
    """

    id: str
    run_id: str
    step: int
    world: int
    members: tuple[Member, ...] = ()
    decided: bool = False

    @property
    def first(self) -> tuple[Member, ...]:
        """The ranks that went bad first, or that raised."""
        return tuple(m for m in self.members if m.role in ("first", "raised"))

    @property
    def absent(self) -> list[int]:
        """Ranks whose bundle does not lie beside this one."""
        there = {m.rank for m in self.members if m.path is not None}
        return [r for r in range(min(self.world, MOST_RANKS)) if r not in there]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "id": self.id,
            "run_id": self.run_id,
            "step": self.step,
            "world": self.world,
            "decided": self.decided,
            "ranks": [one.as_dict() for one in self.members],
            "first": [one.rank for one in self.first],
            "absent": self.absent,
        }

    def sentence(self) -> str:
        """One sentence: who was bad, who received it, whose bundle is not here."""
        bad = [m for m in self.members if m.role in ("first", "received", "raised", "lost")]
        said = "; ".join(clean(m.words(), 80) for m in bad[:6])
        if len(bad) > 6:
            said += f"; and {number(len(bad) - 6)} more"
        fine = sum(m.role in ("agreed", "captured") for m in self.members)
        unheard = self.world - len(bad) - fine
        text = f"{said}." if said else "No rank that is known of was bad."
        if not said and not unheard:
            text = "No rank was bad."
        if said and fine:
            text = f"{said}; {counted(fine, 'other rank')} not."
        if unheard > 0:
            text += f" Nothing is known of {counted(unheard, 'rank')}."
        if self.absent:
            names = joined([number(r) for r in self.absent], 8)
            text += f" Not beside this bundle: rank {names}."
        return text


def siblings(bundle: Bundle) -> dict[int, Bundle]:
    """The bundles of the same incident in the same folder, this one included, by rank."""
    manifest = bundle.manifest
    found = {manifest.rank: bundle}
    if manifest.world <= 1:
        return found
    folder = bundle.path.resolve().parent
    name = bundle.path.name.partition("-rank")[0]
    pattern = f"{name}-rank*.bundle*" if "-rank" in bundle.path.name else "*-rank*.bundle*"
    for path in sorted(folder.glob(_literal(pattern)))[:MOST_RANKS]:
        if not path.name.endswith((".bundle", ".bundle.zip")):
            continue
        try:
            other = open_bundle(path)
        except BundleError:
            continue
        if same_incident(other, bundle):
            found.setdefault(other.manifest.rank, other)
    return found


def same_incident(one: Bundle, other: Bundle) -> bool:
    """Whether two bundles are of one incident."""
    a, b = one.manifest, other.manifest
    if (a.step, a.world) != (b.step, b.world):
        return False
    if a.incident and b.incident:  # the run's name may have been redacted in one of them
        return a.incident == b.incident
    return a.run_id == b.run_id and a.world > 1


def _literal(pattern: str) -> str:
    return pattern.replace("[", "[[]").replace("?", "[?]")


def incident_of(bundle: Bundle, beside: Mapping[int, Bundle] | None = None) -> Incident | None:
    """What is known of all ranks of a bundle's incident; None for a run of one process.

    Args:
        bundle: The bundle.
        beside: The bundles of its incident, where they are open already.
    """
    manifest = bundle.manifest
    if manifest.world <= 1:
        return None
    there = siblings(bundle) if beside is None else dict(beside)
    known: dict[int, Member] = {}
    decided = False
    for rank in sorted(there, key=lambda r: (r != manifest.rank, r)):
        said = ranks_file(there[rank])
        decided = decided or bool(said.get("decided"))
        for member in _members(said):
            old = known.get(member.rank)
            if old is None or old.role == "unknown" or member.rank == rank:
                known[member.rank] = member
    for rank, other in there.items():
        known[rank] = _placed(known.get(rank), other)
    members = tuple(sorted(known.values(), key=lambda m: m.order))
    name = manifest.incident or incident_id(manifest.run_id, manifest.step, manifest.world)
    return Incident(name, manifest.run_id, manifest.step, manifest.world, members, decided)


def ranks_file(bundle: Bundle) -> dict[str, Any]:
    """``ranks.json`` of a bundle; {} where it has none or it cannot be read."""
    if not bundle.has(RANKS):
        return {}
    try:
        found = bundle.json(RANKS)
    except BundleError:
        return {}
    return dict(found) if isinstance(found, Mapping) else {}


def _members(said: Mapping[str, Any]) -> Iterable[Member]:
    rows = said.get("ranks")
    for row in rows[:MOST_RANKS] if isinstance(rows, Sequence) else ():
        if not isinstance(row, Mapping) or not is_rank(row.get("rank")):
            continue
        micro = row.get("micro_step")
        yield Member(
            rank=row["rank"],
            role=str(row.get("role", "unknown"))[:40],
            stage=None if row.get("stage") is None else str(row["stage"])[:40],
            micro_step=micro if isinstance(micro, int) else 0,
            level=str(row.get("level", ""))[:10],
            bundle=str(row.get("bundle", ""))[:240],
        )


def _placed(member: Member | None, bundle: Bundle) -> Member:
    """A member with its bundle; a bundle without ``ranks.json`` still has a first bad record."""
    manifest, bad = bundle.manifest, bundle.first_bad
    if member is None:
        own = bad is not None and bad.rank == manifest.rank and bundle.kind == "nonfinite"
        role = "first" if own else ("captured" if bundle.kind == "captured" else "unknown")
        stage = bad.stage if own and bad is not None else None
        member = Member(manifest.rank, role, stage)
    return Member(
        manifest.rank,
        member.role,
        member.stage,
        member.micro_step,
        manifest.level,
        bundle.path.name,
        bundle.path,
    )
