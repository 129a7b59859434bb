"""Across ranks: which rank made the bad value, which received it, and whether ranks had parted.

Made of the bundles that lie beside the one diagnosed. Order is by step, stage and micro-step, never
by clocks. What a rank whose bundle is not here did is not claimed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from workbench.diagnose.command_line import diagnose_command
from workbench.diagnose.desync import Desync, find_desync
from workbench.evidence.incidents import Incident, incident_of, siblings
from workbench.evidence.wording import joined, number

if TYPE_CHECKING:
    from workbench.evidence import Bundle

RANK_LOCAL: Final = "rank_local"
_REDUCTIONS: Final = {
    "ddp": "c10d.allreduce_.default",
    "fsdp2": "c10d._reduce_scatter_base_.default",
}
_EXPLAINED: Final = (
    "This rank's own gradients were finite; the reduction added those of {who}, which were not, "
    "and NaN or Inf stays in a sum."
)
_SUMMED: Final = (
    "Every rank's own gradients were finite before the reduction; their sum was not: it left the "
    "range of the dtype it was made in."
)
_FIX_SUM: Final = (
    "Reduce in a wider dtype (MixedPrecisionPolicy(reduce_dtype=torch.float32), or no compression "
    "hook), divide before the sum, or lower the loss scale"
)
_FIX: Final = (
    "Diagnose the rank that made it{where} ({command}), its batch first: all ranks have the same "
    "parameters"
)


@dataclass(frozen=True)
class Across:
    """What the bundles of one incident say together.

    Attributes:
        incident: Its ranks, first bad ones first.
        received: Ranks that got a bad value in the reduction.
        local: Whether one rank alone went bad first, while the others were finite.
        desync: How ranks had parted.
        own: This rank's part: a key of ``ROLES``.
    """

    incident: Incident
    received: tuple[int, ...] = ()
    local: bool = False
    desync: tuple[Desync, ...] = ()
    own: str = "unknown"
    sentences: tuple[str, ...] = field(default=())

    def to_data(self) -> dict[str, Any]:
        """The part of ``workbench.findings/1`` that is called ``ranks``."""
        return self.incident.as_dict() | {
            "received": list(self.received),
            "rank_local": self.local,
            "own": self.own,
            "desync": [one.to_data() for one in self.desync],
            "sentences": list(self.sentences),
        }


def across(bundle: Bundle) -> Across | None:
    """Read what lies beside a bundle; None for a run of one process.

    Args:
        bundle: The bundle of one rank.
    """
    if bundle.manifest.world <= 1:
        return None
    there = siblings(bundle)
    incident = incident_of(bundle, there)
    if incident is None:
        return None
    received = tuple(m.rank for m in incident.members if m.role == "received")
    first = [m for m in incident.members if m.role == "first"]
    own = next((m.role for m in incident.members if m.rank == bundle.manifest.rank), "unknown")
    local = incident.decided and len(first) == 1 and incident.world > 1
    desync = tuple(find_desync(there))
    sentences = [incident.sentence(), *(one.sentence for one in desync)]
    if local and received:
        sentences.append(_carried(first[0].rank, received))
    return Across(incident, received, local, desync, own, tuple(sentences))


def _carried(rank: int, received: Sequence[int]) -> str:
    names = joined([number(r) for r in received], 8)
    plural = "s" if len(received) > 1 else ""
    return f"Rank {number(rank)} made it; the reduction carried it to rank{plural} {names}."


def made_elsewhere(bundle: Bundle) -> bool:
    """Whether this rank's own part of the step was finite, so that there is no origin in it."""
    bad = bundle.first_bad
    if bad is None or bundle.kind != "nonfinite" or bundle.manifest.world <= 1:
        return False
    if bad.rank != bundle.manifest.rank:
        return True
    said = bundle.evidence().get("reduce") if bundle.has("evidence.json") else None
    return bad.stage == "reduce" and isinstance(said, Mapping) and said.get("bad_before") is False


def add_ranks(data: dict[str, Any], bundle: Bundle) -> None:
    """Put what all ranks say into the findings of one of them.

    Args:
        data: ``workbench.findings/1`` data, without summary and answers.
        bundle: The bundle.
    """
    found = across(bundle)
    if found is None:
        return
    data["ranks"] = found.to_data()
    for row in data["origins"]:
        row["rank_local"] = found.local
    if made_elsewhere(bundle) and not data["origins"]:
        first = found.incident.first
        row = _collective_row(bundle, found, first[0].rank if first else None)
        if row is not None:
            data["origins"].append(row)
    data["limits"] += [one.limit for one in found.desync]
    if found.incident.absent:
        names = joined([number(r) for r in found.incident.absent], 8)
        data["limits"].append(f"The bundle of rank {names} does not lie beside this one.")


def _collective_row(bundle: Bundle, found: Across, rank: int | None) -> dict[str, Any] | None:
    """The origin on a rank that received what another one made."""
    bad = bundle.first_bad
    if bad is None or found.own not in ("received", "first"):
        return None
    summed = found.own == "first"  # finite on every rank, and not in their sum
    evidence = bundle.evidence()
    said = evidence.get("reduce")
    how = said.get("how") if isinstance(said, Mapping) else None
    who = "another rank" if rank is None else f"rank {number(rank)}"
    empty: dict[str, Any] = {"count": 0, "first": None, "samples": [], "axes": []}
    return {
        "kind": "collective",
        "step": bundle.manifest.step,
        "micro_step": bad.micro_step,
        "rank": bundle.manifest.rank if rank is None or summed else rank,
        "stage": "reduce",
        "op": _REDUCTIONS.get(str(how)),
        "where": "reduce",
        "module": "",
        "in_loss": False,
        "autograd_node": None,
        "forward_op": None,
        "cause": _overflow(bad.kind, bad.dtype) if summed else RANK_LOCAL if found.local else None,
        "range": "overflow" if summed and bad.kind != "nan" else "none",
        "dtype": bad.dtype,
        "tensor": {"name": bad.tensor, "positions": empty},
        "source": "",
        "event": None,
        "explanation": _SUMMED if summed else _EXPLAINED.format(who=who),
        "fix": _FIX_SUM if summed else _diagnose_first(bundle, found),
        "rank_local": found.local,
    }


def _diagnose_first(bundle: Bundle, found: Across) -> str:
    """What to do next, as a command that can be run where this bundle lies."""
    first = next((m for m in found.incident.first if m.bundle), None)
    if first is None:
        return "Diagnose the rank that made it; its bundle does not lie beside this one"
    where = "" if first.path is not None else ", once its bundle lies beside this one"
    command = diagnose_command(bundle, first.bundle)
    return _FIX.format(where=where, command=command)


def _overflow(kind: str, dtype: str | None) -> str | None:
    if kind == "nan":
        return None
    return "low_precision_overflow" if dtype in ("float16", "bfloat16") else "float32_overflow"
