"""The non-finite elements of a tensor at some moment, and whether they became more."""

from __future__ import annotations

from typing import NamedTuple

from workbench.numerics.counts import Counts


class BadSet(NamedTuple):
    """The non-finite elements of a tensor.

    Attributes:
        counts: How many NaN, +Inf and -Inf there are.
        mask: Digest of where they are.
    """

    counts: Counts
    mask: str


def grew(now: BadSet, before: BadSet | None) -> bool:
    """Whether there are more of some class than before.

    A set that only shrinks or moves is being filled (a memory bank that starts as NaN, the best
    loss of each sample that starts as Inf), and nothing went bad.
    """
    if before is None:
        return True
    if now.mask == before.mask:
        return False
    new, old = now.counts, before.counts
    return new.nan > old.nan or new.pos_inf > old.pos_inf or new.neg_inf > old.neg_inf
