"""The last calm step before an alert: its batch and random state, to compare the alert's step with.

Kept only where an alert looks for jumps of loss or gradient norm and the recovery ring keeps no
earlier steps anyway. Parameters are not kept: a replay runs the calm batch through the parameters
of the alert's own step, which tells what the batch did from what the parameters did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from workbench.record.recovery import KeptStep, snapshot_bytes
from workbench.step.digests import loss_bits
from workbench.step.storage import write_state

if TYPE_CHECKING:
    from workbench.evidence.writer import BundleWriter
    from workbench.record.policy import Policy
    from workbench.record.quiet_step import QuietStep
    from workbench.record.recorder import Recorder
    from workbench.record.session import Session
    from workbench.step.state import StepSnapshot

INDEX = "calm/index.json"


class CalmStep:
    """Holds the newest step at which nothing was unusual.

    Args:
        policy: The recorder's policy.
    """

    def __init__(self, policy: Policy) -> None:
        jumps = (policy.alerts.loss_factor, policy.alerts.grad_norm_factor)
        self.is_wanted = not policy.recovery_every and any(limit is not None for limit in jumps)
        self._kept: KeptStep | Callable[[], KeptStep] | None = None

    @property
    def kept(self) -> KeptStep | None:
        """The step; made of what was held of a quiet one only when it is asked for."""
        if callable(self._kept):
            self._kept = self._kept()
        return self._kept

    def add(self, session: Session, bits: str | None) -> None:
        """Keep a finished step in which nothing was unusual, in place of the one before.

        Args:
            session: The recorded step.
            bits: Bits of its loss.
        """
        snapshot = session.snapshot
        if snapshot is not None and snapshot.micro_batches:
            self._kept = _kept(session.step_index, snapshot, bits)

    def note(self, step: QuietStep, recorder: Recorder) -> None:
        """Keep a quiet step in place of the one before.

        Args:
            step: The step, not finished yet.
            recorder: Its recorder.
        """
        bits = loss_bits(step.total_loss())
        self._kept = lambda: _kept(step.index, step.snapshot(recorder), bits)


def _kept(step: int, snapshot: StepSnapshot, bits: str | None) -> KeptStep:
    snapshot.drop_before_update()
    snapshot.buffers = None
    return KeptStep(step, snapshot, bits, snapshot_bytes(snapshot))


def write_calm(writer: BundleWriter, kept: KeptStep) -> None:
    """Write a calm step under ``calm/``; its index has ``step``, ``prefix`` and ``loss_bits``."""
    write_state(writer, kept.snapshot.freeze(), "calm/")
    writer.add_json(INDEX, {"step": kept.step, "prefix": "calm/", "loss_bits": kept.loss_bits})
