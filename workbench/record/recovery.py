"""The recovery ring: states of earlier steps, to replay the way that led to an incident."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.evidence.writer import BundleWriter
from workbench.record.scanning import share_of
from workbench.step.digests import model_fingerprint, sums_of
from workbench.step.host_copies import Copies, HostPool, readable
from workbench.step.names import named_buffers, named_parameters
from workbench.step.snapshots import copy_tree, storage_key
from workbench.step.state import StepSnapshot
from workbench.step.storage import write_state

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger("workbench")

_SUMMED = 1 << 18
"""Elements of parameters and buffers up to which all of them are summed at every step."""
_PLAIN_BYTES = 24 * 2**10
"""Bytes of a kept step beside its tensors: 12 KiB in memory and 21 KiB in a bundle were seen."""


@dataclass
class KeptStep:
    """One earlier step.

    Attributes:
        step: Its number.
        snapshot: Its state from before it ran; parameters only where it is a recovery point.
        loss_bits: Bits of its loss.
        size: Bytes it holds on to, estimated.
        pooled: Those of them that lie in the ring's own memory.
        sums: Bit sums of parameters and buffers before the step, between recovery points.
    """

    step: int
    snapshot: StepSnapshot
    loss_bits: str | None
    size: int
    sums: dict[str, int] | None = None
    pooled: int = 0

    @property
    def is_recovery_point(self) -> bool:
        """Whether a replay can start here."""
        return self.snapshot.model is not None


class RecoveryRing:
    """Keeps recovery points and the batches and random states of the steps after them.

    Args:
        every: Distance of recovery points in steps; 0 keeps nothing.
        most_bytes: Most memory the kept steps may take; the oldest go first.
    """

    def __init__(self, every: int, most_bytes: int) -> None:
        self.every = every
        self._most_bytes = most_bytes
        self._steps: deque[KeptStep] = deque()
        self._turn = 0
        # Kept as the steps come and go: thousands of small ones fit into the memory, and a look at
        # all of them at every step would cost more than the step.
        self._outside = 0
        self._copying: list[Copies] = []
        self._pool = HostPool(most_bytes, lambda: self._outside, self._drop_oldest, logger.warning)

    def wants_state(self, step: int) -> bool:
        """Whether the state before this step is a recovery point."""
        return self.every > 0 and step % self.every == 0

    def begin(self, snapshot: StepSnapshot) -> None:
        """Begin a recovery point: copy into the ring's memory what the update will write.

        Args:
            snapshot: The snapshot of a step that has not begun to run.
        """
        snapshot.move_state(self._pool.copy)

    def add(
        self,
        step: int,
        snapshot: StepSnapshot | None,
        loss_bits: str | None,
        sums: dict[str, int] | None = None,
    ) -> None:
        """Keep a finished step.

        Args:
            step: Its number.
            snapshot: What was kept from before it ran.
            loss_bits: Bits of its loss.
            sums: Bit sums of parameters and buffers before it ran.
        """
        if self.every == 0 or snapshot is None:
            return
        if not self.wants_state(step):
            # a step that tripped or was skipped still has its parameters, and half a state is no
            # recovery point
            snapshot.drop_before_update()
        snapshot.buffers = None
        snapshot.move_batches(self._pool.copy)
        size = snapshot_bytes(snapshot)
        pooled = sum(copies.size for copies in snapshot.copies)
        kept = KeptStep(step, snapshot, loss_bits, max(size, pooled), sums, pooled)
        self._steps.append(kept)
        self._outside += kept.size - kept.pooled
        self._copying += snapshot.copies
        self._let_go_of_sources()
        self._shrink()

    def _let_go_of_sources(self) -> None:
        """Give back the device memory of what has been copied meanwhile."""
        self._copying = [copies for copies in self._copying if not copies.is_made()]

    def _shrink(self) -> None:
        """Drop the oldest steps, then those that no recovery point leads to."""
        while self._steps and self._pool.bytes + self._outside > self._most_bytes:
            if not self._pool.drop_unused():
                self._drop_oldest()
        self._drop_the_unreached()

    def _drop_oldest(self) -> bool:
        """Drop the oldest recovery point and the steps that only it leads to; False without one."""
        if not self._steps:
            return False
        self._drop_first()
        self._drop_the_unreached()
        return True

    def _drop_the_unreached(self) -> None:
        """Drop the steps at the beginning that no recovery point leads to."""
        while self._steps and not self._steps[0].is_recovery_point:
            self._drop_first()

    def _drop_first(self) -> None:
        kept = self._steps.popleft()
        self._outside -= kept.size - kept.pooled

    def sums(self, model: nn.Module) -> dict[str, int]:
        """Bit sums of parameters and buffers, to compare a replayed step's start with.

        Of a small model all of them; of a large one each step takes a share in turn, since reading
        every parameter at every step costs as much as the gradient gate.
        """
        named = [*named_parameters(model), *named_buffers(model)]
        total = sum(tensor.numel() for _, tensor in named)
        if total > _SUMMED:
            tensors = [tensor for _, tensor in named]
            start = self._turn
            chosen, self._turn = share_of(tensors, self._turn, _SUMMED)
            named = [named[(start + offset) % len(named)] for offset in range(len(chosen))]
        return sums_of(named)

    def steps_before(self, step: int) -> list[KeptStep]:
        """List the kept steps that ran before a step and can be read, oldest first."""
        found: list[KeptStep] = []
        for kept in self._steps:
            if kept.step >= step:
                continue
            if not readable(kept.snapshot.copies):
                found = []  # nothing leads past it
            elif found or kept.is_recovery_point:
                found.append(kept)
        return found


def snapshot_bytes(snapshot: StepSnapshot) -> int:
    """Estimate the memory a snapshot holds on to once its originals have changed.

    Of a small model almost all of it is random states and Python objects, which count as much
    for every step.
    """
    state = snapshot.peek()
    seen: dict[int, int] = {}

    def note(t: Any) -> None:
        seen[storage_key(t)] = t.numel() * t.element_size()

    parts = [state.micro_batches, {} if state.model is None else state.model.tensors]
    copy_tree([*parts, [one.state for one in state.optimizers]], note)
    return _PLAIN_BYTES + sum(seen.values())


def write_trajectory(writer: BundleWriter, steps: list[KeptStep]) -> None:
    """Write earlier steps under ``trajectory/`` with an index.

    ``trajectory/index.json`` lists them oldest first: ``step``, ``prefix`` (for ``read_state``),
    ``recovery_point``, ``loss_bits`` and, where parameters were kept, their ``fingerprint``, else
    the ``sums`` of their bits by name.
    """
    index = []
    for kept in steps:
        prefix = f"trajectory/step{kept.step:08d}/"
        state = kept.snapshot.freeze()
        write_state(writer, state, prefix)
        index.append(
            {
                "step": kept.step,
                "prefix": prefix,
                "recovery_point": kept.is_recovery_point,
                "loss_bits": kept.loss_bits,
                "fingerprint": None if state.model is None else model_fingerprint(state.model),
                "sums": kept.sums,
            }
        )
    writer.add_json("trajectory/index.json", {"steps": index})
