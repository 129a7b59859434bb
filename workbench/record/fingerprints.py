"""A cheap fingerprint of parameters and optimizer state in the ledger shows ranks that part.

Ranks of data parallelism hold the same parameters after every update. The ledger of each rank keeps
one number for all of them, at every step of a small model and every ``EVERY`` steps of a large one,
and at every step that trips, so that the step at which ranks parted is found from their ledgers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from torch import Tensor

from workbench.step.digests import sums_of
from workbench.step.gates import optimizer_state_tensors
from workbench.step.names import named_parameters

if TYPE_CHECKING:
    from workbench.record.recorder import Recorder
    from workbench.record.session import Session

EVERY: Final = 50
"""Steps between two fingerprints of a large model."""
SMALL: Final = 1 << 15
"""Elements of parameters up to which every step has one."""
_WRAP: Final = (1 << 64) - 1


def fingerprint_of(recorder: Recorder, session: Session, tripped: bool) -> dict[str, Any] | None:
    """The fingerprint after a step: equal on all ranks of data parallelism.

    Args:
        recorder: The recorder.
        session: The recorded step.
        tripped: Whether the step tripped or was captured.

    Returns:
        ``{"parameters", "optimizer"}``; None on one rank, for tensors that are split over ranks,
        and at steps that have none.
    """
    if recorder.world <= 1:
        return None
    named = list(named_parameters(recorder.model))
    if any(hasattr(parameter, "placements") for _, parameter in named):
        return None
    small = sum(parameter.numel() for _, parameter in named) <= SMALL
    if not (small or tripped or session.step_index % EVERY == 0):
        return None
    state = list(optimizer_state_tensors(recorder.model, recorder.optimizers))
    return {"parameters": _one(named), "optimizer": _one(state)}


def _one(named: list[tuple[str, Any]]) -> int:
    """One number for many tensors; where a tensor stands counts, too."""
    total = 0
    sums = sums_of((name, t) for name, t in named if isinstance(t, Tensor))
    for number, (_, value) in enumerate(sorted(sums.items())):
        total = (total + value * (2 * number + 1)) & _WRAP
    return total
