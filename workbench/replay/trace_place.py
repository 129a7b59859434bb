"""Where in the step the running op is, and which forward op a backward op belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from workbench.replay.trace_context import Place, SourceFinder, StepContext
from workbench.replay.trace_graph import IN_LOSS, MODULE, SOURCE, WHERE, Graph, Setting

if TYPE_CHECKING:
    from types import FrameType

_current_node = torch._C._current_autograd_node
_current_task = torch._C._current_graph_task_id
_sequence_number = torch._C._autograd._get_sequence_nr
_is_grad_enabled = torch.is_grad_enabled


class Places:
    """Says of each op, right before it runs, where it belongs.

    Several ops in a row often have the same setting: those of one line, and those of one autograd
    node. It is put together once for all of them.

    Args:
        context: Stage and module position.
        graph: The events so far.
    """

    def __init__(self, context: StepContext, graph: Graph) -> None:
        self._context = context
        self._graph = graph
        self._owners: dict[int, int] = {}
        self._tasks: dict[int, bool] = {}
        self._node_names: dict[str, str] = {}
        self._sources = SourceFinder()
        # the last setting of forward and of backward, and what it was made from
        self._ahead: tuple[Place | None, str, bool, Setting | None] = (None, "", False, None)
        self._back: tuple[int, int, str, Place | None, str, Setting | None] = (
            -1, -1, "", None, "", None,
        )  # fmt: skip

    def source(self) -> str:
        """The user's line that the caller's caller comes from."""
        return self._sources.find(3)[0]

    def release(self) -> None:
        """Let go of the step's frames."""
        self._sources.release()

    def setting(self, frame: FrameType) -> Setting:
        """Where the op that is about to run belongs; its events are next."""
        place = self._context.place
        source, in_loss, in_engine = self._sources.above(frame)
        node: Any = _current_node()
        if node is not None:
            return self._within_backward(node, place, source, in_loss, in_engine)
        self._owners.setdefault(_sequence_number() - 1, len(self._graph))
        last_place, last_source, last_in_loss, found = self._ahead
        if (
            found is None
            or last_place is not place
            or last_source is not source
            or last_in_loss is not in_loss
        ):
            stage, phase, micro_step, where, module, is_loss = place
            found = (
                stage, phase, micro_step, where, module, is_loss or in_loss, source,
                None, -1, None, False, False,
            )  # fmt: skip
            self._ahead = (place, source, in_loss, found)
        return found

    def _within_backward(
        self, node: Any, place: Place, source: str, in_loss: bool, in_engine: bool
    ) -> Setting:
        grad_mode = _is_grad_enabled()
        task, sequence, full = _current_task(), node._sequence_nr(), node.name()
        if in_engine and not grad_mode:
            last_task, number, name, last_place, last_source, last = self._back
            if (
                number == sequence
                and last_task == task
                and last is not None
                and last_place is place
                and last_source is source
                and name == full
            ):
                return last
        # checkpointed forward is repeated with gradients on in a backward that began without
        began_with = self._tasks.setdefault(task, grad_mode)
        if grad_mode and not began_with:
            return self._recomputed(sequence, place, source, in_loss)
        owner = self._owner(sequence)
        if grad_mode:  # create_graph: this op makes nodes of its own
            self._owners.setdefault(_sequence_number() - 1, len(self._graph))
        stage, phase, micro_step, where, module, is_loss = place
        in_loss = is_loss or in_loss
        own = source
        if owner is not None:
            at = self._graph.setting(owner)
            where, module, in_loss = at[WHERE], at[MODULE], at[IN_LOSS]  # type: ignore[assignment]
            if in_engine:  # a hook or a custom backward has a line of its own
                own = at[SOURCE] or source
        found = (
            stage, phase, micro_step, where, module, in_loss, own,
            self._short(full), sequence, owner, False, not in_engine,
        )  # fmt: skip
        if in_engine and owner is not None and not grad_mode:
            self._back = (task, sequence, full, place, source, found)
        return found

    def _recomputed(self, sequence: int, place: Place, source: str, in_loss: bool) -> Setting:
        """Where an op within backward is that repeats a checkpointed forward (DESIGN rule 5)."""
        self._owners.setdefault(_sequence_number() - 1, len(self._graph))
        stage, phase, micro_step, where, module, is_loss = place
        in_loss = is_loss or in_loss
        origin = self._owner(sequence)
        if origin is not None and not self._context.modules:
            # outside of any module call it is where the checkpointed forward was
            at = self._graph.setting(origin)
            where, module, in_loss = at[WHERE], at[MODULE], at[IN_LOSS]  # type: ignore[assignment]
        return (
            stage, phase, micro_step, where, module, in_loss, source, None, -1, None, True, False,
        )  # fmt: skip

    def _owner(self, sequence: int) -> int | None:
        """The forward event whose autograd node has a sequence number."""
        owner = self._owners.get(sequence)
        return owner if owner is not None and owner < len(self._graph) else None

    def _short(self, name: str) -> str:
        short = self._node_names.get(name)
        if short is None:
            short = self._node_names[name] = name.rpartition("::")[2]
        return short
