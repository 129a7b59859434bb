"""Ranks that hold the same parameters, until they do not: which ones parted, and at which step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from workbench.errors import BundleError
from workbench.evidence.incidents import ranks_file
from workbench.evidence.wording import clean, joined, number

if TYPE_CHECKING:
    from workbench.evidence import Bundle

RANK_DESYNC: Final = "rank_desync"
_SPLIT: Final = frozenset({"fsdp2", "tensor", "dtensor", "pipeline"})
_WHAT: Final = {"parameters": "parameters", "optimizer": "optimizer state"}
MOST_NAMES: Final = 200


@dataclass(frozen=True)
class Desync:
    """How ranks of data parallelism parted.

    Attributes:
        what: ``parameters`` or ``optimizer``.
        groups: Ranks that hold the same, the largest group first.
        equal_after: The last recorded step after which all were equal, or None.
        parted_by: The first recorded step after which they were not, or None.
        names: What differs before the step of the incident.
    """

    what: str
    groups: tuple[tuple[int, ...], ...]
    equal_after: int | None
    parted_by: int | None
    names: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """What parted, which ranks, when."""
        sides = " and ".join(
            f"rank {joined([number(r) for r in group], 4)}" for group in self.groups[:3]
        )
        text = f"The {_WHAT[self.what]} of {sides} differ ({RANK_DESYNC}){self._when()}"
        if self.names:
            text += f": {joined([clean(repr(n), 80) for n in self.names], 4)}"
        return f"{text}."

    def _when(self) -> str:
        before, by = self.equal_after, self.parted_by
        if by is None:
            return ", since before the step of the incident"
        if before is None:
            return f", at or before step {number(by)}, the first that is recorded"
        if before == by - 1:
            return f" since step {number(by)}, equal after step {number(before)}"
        return f" since a step between {number(before + 1)} and {number(by)}"

    @property
    def limit(self) -> str:
        """What it means for a replay."""
        return (
            f"The ranks had parted before this step ({RANK_DESYNC}): each rank's replay uses its "
            "own parameters, and a repair of one rank is none of the run."
        )

    def to_data(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "cause": RANK_DESYNC,
            "what": self.what,
            "groups": [list(group) for group in self.groups],
            "equal_after": self.equal_after,
            "parted_by": self.parted_by,
            "names": list(self.names),
            "sentence": self.sentence,
        }


def find_desync(there: Mapping[int, Bundle]) -> list[Desync]:
    """Compare the fingerprints of the ranks' ledgers and bundles.

    Args:
        there: The bundles of one incident by rank.
    """
    said = {rank: ranks_file(bundle) for rank, bundle in there.items()}
    kinds = {str(k) for one in said.values() for k in _kinds(one)}
    if len(there) < 2 or kinds & _SPLIT:
        return []
    ledgers = {rank: _fingerprints(bundle) for rank, bundle in there.items()}
    found = []
    for what in _WHAT:
        of_step = {rank: {s: one[what] for s, one in steps.items() if what in one}
                   for rank, steps in ledgers.items()}  # fmt: skip
        sums = {rank: _sums(one, what) for rank, one in said.items()}
        one = _compare(what, of_step, sums, replicated="ddp" in kinds)
        if one is not None:
            found.append(one)
    return found


def _compare(
    what: str,
    ledgers: Mapping[int, Mapping[int, int]],
    sums: Mapping[int, Mapping[str, int]],
    replicated: bool,
) -> Desync | None:
    common = set.intersection(*(set(steps) for steps in ledgers.values()))
    equal_after = parted_by = None
    values: dict[int, Any] = {}
    for step in sorted(common):
        now = {rank: steps[step] for rank, steps in ledgers.items()}
        if len(set(now.values())) == 1:
            equal_after, parted_by = step, None
        elif parted_by is None:
            parted_by, values = step, now
    names = _names(sums)
    if parted_by is None and not names:
        return None
    if equal_after is None and not replicated:
        return None  # never seen equal: these ranks need not hold the same
    if not values:
        values = {rank: tuple(sorted(one.items())) for rank, one in sums.items() if one}
    return Desync(what, _groups(values), equal_after, parted_by, names)


def _groups(values: Mapping[int, Any]) -> tuple[tuple[int, ...], ...]:
    by_value: dict[Any, list[int]] = {}
    for rank, value in sorted(values.items()):
        by_value.setdefault(value, []).append(rank)
    return tuple(sorted(map(tuple, by_value.values()), key=lambda g: (-len(g), g)))


def _names(sums: Mapping[int, Mapping[str, int]]) -> tuple[str, ...]:
    kept = [one for one in sums.values() if one]
    if len(kept) < 2:
        return ()
    first = kept[0]
    apart = [n for n in first if any(other.get(n) != first[n] for other in kept[1:])]
    return tuple(sorted(apart)[:MOST_NAMES])


def _kinds(said: Mapping[str, Any]) -> Iterable[Any]:
    parallel = said.get("parallel")
    kinds = parallel.get("kinds") if isinstance(parallel, Mapping) else None
    return kinds if isinstance(kinds, list) else ()


def _sums(said: Mapping[str, Any], what: str) -> dict[str, int]:
    sums = said.get("sums")
    found = sums.get(what) if isinstance(sums, Mapping) else None
    if not isinstance(found, Mapping):
        return {}
    return {str(name): value for name, value in found.items() if isinstance(value, int)}


def _fingerprints(bundle: Bundle) -> dict[int, dict[str, int]]:
    try:
        records = bundle.ledger()
    except BundleError:
        return {}
    found: dict[int, dict[str, int]] = {}
    for record in records:
        step, one = record.get("step"), record.get("fingerprint")
        if isinstance(step, int) and isinstance(one, Mapping):
            found[step] = {k: v for k, v in one.items() if k in _WHAT and isinstance(v, int)}
    return found
