"""One policy for the loss scales of all ranks: where one scaler skips, all do, and all back off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.record.running import RecordingRunner
    from workbench.record.session import Session


def tell_scaler(session: Session, runner: RecordingRunner, rank: int) -> None:
    """Make this rank's scaler skip, as another rank's does.

    Gradients that DDP or FSDP2 reduced are bad on all ranks or on none, and scalers agree by
    themselves; they part where gradients are reduced by hand or not at all. A scaler that keeps
    what it found as torch's does is told so; with any other the update is withheld.

    Args:
        session: The recorded step.
        runner: The runner.
        rank: The rank whose scaler skips.
    """
    states: Any = getattr(runner.scaler, "_per_optimizer_states", None)
    told = False
    for optimizer in runner.optimizers if states is not None else ():
        found = states[id(optimizer)].get("found_inf_per_device", {})
        for value in found.values():
            value.fill_(1.0)
            told = True
    what = "its scaler was told so and skips, too" if told else "its update was withheld"
    session.notes.append(f"the loss scaler of rank {rank} skips; this rank saw no Inf: {what}")
    if told:
        runner.will_skip_too()
    elif not runner.values.withheld:
        runner.withhold_update()
