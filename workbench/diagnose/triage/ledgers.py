"""Ledgers of thousands of ranks as columns: which rank went bad first, and which received it.

Ordered by step and stage, never by a clock: clocks of different machines are wrong by more than
a step takes. Every rank's text is turned into arrays by itself, so that memory holds one
rank's records and what went bad of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from workbench.evidence.schema import MOST_RANKS
from workbench.evidence.stages import STAGES, UNKNOWN, stage_code
from workbench.numerics import jsonio

REDUCE: Final = stage_code("reduce")
"""From this stage on a rank may hold what another rank made."""
_LARGEST: Final = 2**53

Ints = np.ndarray[Any, np.dtype[np.int64]]
_Rank = Annotated[int, msgspec.Meta(ge=0, lt=MOST_RANKS)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]


class _Record(msgspec.Struct, gc=False):
    """The fields of an L1 record that say when and where a rank went bad."""

    step: _Count
    rank: _Rank | None = 0
    micro_step: _Count | None = 0
    first_bad_stage: str | None = None
    consecutive_skips: _Count | None = 0


_DECODER: Final = msgspec.json.Decoder(_Record)


@dataclass(frozen=True)
class Part:
    """What one ledger says.

    Attributes:
        bad: Of each record that went bad: step, stage code, micro-step, rank.
        ranks: Of each rank in it: rank, number of records, first step, last step, skipped steps.
        unread: Lines that were no record.
    """

    bad: Ints
    ranks: Ints
    unread: int = 0


@dataclass(frozen=True)
class Ledgers:
    """What the ledgers of all ranks say together.

    Attributes:
        bad: Like `Part.bad`, earliest first: by step, then stage, then micro-step, then rank.
        ranks: Like `Part.ranks`, by rank.
        unread: Lines that were no record.
    """

    bad: Ints
    ranks: Ints
    unread: int = 0

    @property
    def records(self) -> int:
        """Number of records read."""
        return int(self.ranks[:, 1].sum())


def read_part(data: bytes) -> Part:
    """Turn one ledger into columns.

    Args:
        data: Its JSON lines, of one rank or of several.
    """
    records, unread = jsonio.typed_lines(data, _DECODER)
    step = np.array([record.step for record in records], dtype=np.int64)
    rank = np.array([record.rank or 0 for record in records], dtype=np.int64)
    skipped = np.array([bool(record.consecutive_skips) for record in records], dtype=bool)
    bad = [
        (r.step, stage_code(r.first_bad_stage), r.micro_step or 0, r.rank or 0)
        for r in records
        if r.first_bad_stage is not None
    ]
    return Part(_rows(bad, 4), _by_rank(rank, step, skipped), unread)


def merge(parts: Iterable[Part]) -> Ledgers:
    """Put ledgers together and order what went bad.

    Args:
        parts: One a ledger; a resumed run may have several of one rank.
    """
    bad, ranks, unread = [], [], 0
    for part in parts:
        bad.append(part.bad)
        ranks.append(part.ranks)
        unread += part.unread
    rows = np.concatenate(bad) if bad else _rows([], 4)
    order = np.lexsort((rows[:, 3], rows[:, 2], rows[:, 1], rows[:, 0]))
    return Ledgers(rows[order], _joined(np.concatenate(ranks) if ranks else _rows([], 5)), unread)


def ingest(texts: Iterable[bytes]) -> Ledgers:
    """Read ledgers one after the other; no more than one text is held.

    Args:
        texts: The JSON lines of each ledger.
    """
    return merge(read_part(text) for text in texts)


@dataclass(frozen=True)
class Episode:
    """Consecutive bad steps, and how their first one spread over the ranks.

    Attributes:
        first_step: The first of them.
        last_step: The last of them.
        stage: Stage of the earliest bad record of the first step.
        first: Ranks that were bad at that stage.
        own: Ranks that were bad before gradients were reduced: none of them received it from
            another rank through that reduction.
        later: Ranks that went bad in the same step at ``reduce`` or after it.
        ranks: Number of ranks with a ledger.
        ended: Ranks whose ledger ends before that step.
    """

    first_step: int
    last_step: int
    stage: str
    first: tuple[int, ...]
    own: tuple[int, ...]
    later: tuple[int, ...]
    ranks: int
    ended: tuple[int, ...]


def episodes(ledgers: Ledgers) -> list[Episode]:
    """The runs of consecutive bad steps, earliest first."""
    bad = ledgers.bad
    if not len(bad):
        return []
    steps = np.unique(bad[:, 0])
    starts = np.flatnonzero(np.diff(steps, prepend=steps[0] - 2) > 1)
    ends = np.append(starts[1:], len(steps)) - 1
    found = []
    for start, end in zip(starts, ends, strict=True):
        step = steps[start]
        low, high = np.searchsorted(bad[:, 0], [step, step + 1])
        found.append(_episode(bad[low:high], ledgers.ranks, int(step), int(steps[end])))
    return found


def clusters(found: Iterable[Episode]) -> list[list[Episode]]:
    """Episodes that began at the same stage on the same ranks, largest cluster first."""
    kinds: dict[tuple[str, tuple[int, ...]], list[Episode]] = {}
    for one in found:
        kinds.setdefault((one.stage, one.own or one.first), []).append(one)
    return sorted(kinds.values(), key=lambda group: (-len(group), group[0].first_step))


def _episode(rows: Ints, ranks: Ints, step: int, last: int) -> Episode:
    code = int(rows[0, 1])
    own = np.unique(rows[rows[:, 1] < REDUCE, 3])
    later = np.setdiff1d(rows[:, 3], own)
    return Episode(
        step,
        last,
        STAGES[code] if code < UNKNOWN else "unknown",
        tuple(np.unique(rows[rows[:, 1] == code, 3]).tolist()),
        tuple(own.tolist()),
        tuple(later.tolist()),
        len(ranks),
        tuple(ranks[ranks[:, 3] < step, 0].tolist()),
    )


def _rows(values: Sequence[tuple[int, ...]], width: int) -> Ints:
    return np.array(values, dtype=np.int64).reshape(-1, width)


def _by_rank(rank: Ints, step: Ints, skipped: Any) -> Ints:
    if not len(rank):
        return _rows([], 5)
    if rank[0] == rank[-1] and (rank == rank[0]).all():  # the usual ledger: one rank
        row = (int(rank[0]), len(rank), int(step.min()), int(step.max()), int(skipped.sum()))
        return _rows([row], 5)
    each = [rank, np.ones_like(rank), step, step, skipped.astype(np.int64)]
    return _joined(np.stack(each, axis=1))


def _joined(rows: Ints) -> Ints:
    """Rows of `Part.ranks`, one a rank."""
    names, place = np.unique(rows[:, 0], return_inverse=True)
    joined = np.zeros((len(names), 5), dtype=np.int64)
    joined[:, 0] = names
    joined[:, 2] = _LARGEST
    np.add.at(joined[:, 1], place, rows[:, 1])
    np.minimum.at(joined[:, 2], place, rows[:, 2])
    np.maximum.at(joined[:, 3], place, rows[:, 3])
    np.add.at(joined[:, 4], place, rows[:, 4])
    return joined
