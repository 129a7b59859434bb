"""The last calm step before an alert: its batch and random state, to compare the alert's step with.

Kept only where an alert looks for jumps of loss or gradient norm and the recovery ring keeps no
earlier steps anyway. Parameters are not kept: a replay runs the calm batch through the parameters
of the alert's own step, which tells what the batch did from what the parameters did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.record.recovery import KeptStep, snapshot_bytes
from workbench.step.storage import write_state

if TYPE_CHECKING:
    from workbench.evidence.writer import BundleWriter
    from workbench.record.policy import Policy
    from workbench.record.session import Session

INDEX = "calm/index.json"


class CalmStep:
    """Holds the newest step at which nothing was unusual.

    Args:
        policy: The recorder's policy.
    """

    def __init__(self, policy: Policy) -> None:
        jumps = (policy.alerts.loss_factor, policy.alerts.grad_norm_factor)
        self._wanted = not policy.recovery_every and any(limit is not None for limit in jumps)
        self.kept: KeptStep | None = None

    def add(self, session: Session, loss_bits: str | None) -> None:
        """Keep a finished step in which nothing was unusual, in place of the one before.

        Args:
            session: The recorded step.
            loss_bits: Bits of its loss.
        """
        snapshot = session.snapshot
        if not self._wanted or snapshot is None or not snapshot.micro_batches:
            return
        snapshot.drop_before_update()
        snapshot.buffers = None
        size = snapshot_bytes(snapshot)
        self.kept = KeptStep(session.step_index, snapshot, loss_bits, size)


def write_calm(writer: BundleWriter, kept: KeptStep) -> None:
    """Write a calm step under ``calm/``; its index has ``step``, ``prefix`` and ``loss_bits``."""
    write_state(writer, kept.snapshot.freeze(), "calm/")
    writer.add_json(INDEX, {"step": kept.step, "prefix": "calm/", "loss_bits": kept.loss_bits})
