"""What of a replayed step's start was compared with the record, and when it last was the same.

Between recovery points the record holds no parameters, only sums of their bits, and of a large
model those of a share at each step, in turn. So a tensor that differs may have done so for some
steps, and a step of which a share was compared may start from other values than the recorded ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from workbench.evidence.wording import counted, joined

if TYPE_CHECKING:
    from workbench.replay.kept_steps import Kept

_NAMED: Final = 3
"""Tensors named in a sentence."""


class Compared:
    """What was compared since all parameters and buffers were last seen to be as recorded.

    Args:
        step: The step at whose start they were.
    """

    def __init__(self, step: int) -> None:
        self._all = step
        self._equal: dict[str, int] = {}
        self._tensors = 0

    def differing(self, kept: Kept, here: Mapping[str, int]) -> tuple[str, ...]:
        """Compare a step's sums.

        Args:
            kept: The recorded step, with sums of all or some of its parameters and buffers.
            here: Those of the replayed one, all of them.

        Returns:
            Names of those that differ.
        """
        self._tensors = len(here)
        both = [name for name in kept.sums if name in here]
        self._equal |= {n: kept.step for n in both if kept.sums[n] == here[n]}
        return tuple(name for name in both if kept.sums[name] != here[name])

    def share(self, kept: Kept) -> str:
        """Say how much of a step's start is known to be as recorded."""
        if kept.is_recovery_point or len(kept.sums) == self._tensors > 0:
            return "It starts from the recorded values."
        if not kept.sums:
            return "The values it starts from were not compared: the record holds no sums of them."
        count = len(kept.sums)
        return (
            f"Of the {counted(self._tensors, 'tensor')} it starts from, {count:,} "
            f"{'was' if count == 1 else 'were'} compared at this step, and "
            f"{'is' if count == 1 else 'are'} as recorded."
        )

    def departed(self, kept: Kept, what: str, names: Sequence[str], before: int) -> str:
        """Say that tensors are not what the step before left, as a sentence without its stop.

        Args:
            kept: The step at whose start they differ.
            what: ``parameters`` or ``optimizer_state``.
            names: Their names.
            before: The step replayed before it.
        """
        shown = joined([f"'{name}'" for name in names[:_NAMED]])
        more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        verb, was = ("is", "was") if len(names) == 1 else ("are", "were")
        if what == "optimizer_state":
            return f"optimizer state of {shown}{more} {verb} not what step {before:,} left"
        said = f"{shown}{more} {verb} not what step {before:,} left"
        if kept.is_recovery_point or len(kept.sums) == self._tensors:
            return said
        since = min(self._equal.get(name, self._all) for name in names)
        return (
            f"{said} ({len(kept.sums):,} of {counted(self._tensors, 'tensor')} compared at "
            f"this step; {'it' if len(names) == 1 else 'these'} {was} last seen as recorded at "
            f"step {since:,})"
        )
