"""Buffers as the inner module used them: DDP broadcasts rank 0's within forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.step.gates import buffers_of
from workbench.step.names import inner_model

if TYPE_CHECKING:
    from workbench.record.recorder import Recorder


def follow_buffers(recorder: Recorder, wrapper: Any) -> None:
    """Have the snapshot of each step hold the buffers that DDP's module begins with.

    Args:
        recorder: The recorder.
        wrapper: The DDP module.
    """
    if not wrapper.forward_sync_buffers or not buffers_of(recorder.model):
        return

    def look(module: Any, inputs: Any) -> None:
        del module, inputs
        session = recorder.running
        if session is None or session.buffers_seen or session.snapshot is None:
            return
        session.buffers_seen = True
        if wrapper.require_forward_param_sync:
            recorder.guard("buffers", session.snapshot.keep_buffers)

    inner_model(wrapper).register_forward_pre_hook(look)
