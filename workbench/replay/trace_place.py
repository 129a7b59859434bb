"""Where in the step the running op is, and which forward op a backward op belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from workbench.replay.trace_context import SourceFinder, StepContext
from workbench.replay.trace_graph import IN_LOSS, MODULE, SOURCE, WHERE, Graph, Head

if TYPE_CHECKING:
    from types import FrameType

    from workbench.replay.calls import CallMode

_current_node = torch._C._current_autograd_node
_current_task = torch._C._current_graph_task_id
_sequence_number = torch._C._autograd._get_sequence_nr


class Places:
    """Says of each op, right before it runs, where it belongs.

    Args:
        context: Stage and module position.
        calls: Numbers the torch function calls.
        graph: The events so far.
    """

    def __init__(self, context: StepContext, calls: CallMode, graph: Graph) -> None:
        self._context = context
        self._numbering = calls
        self._graph = graph
        self._calls = 0
        self._owners: dict[int, int] = {}
        self._graph_tasks: dict[int, bool] = {}
        self._node_names: dict[str, str] = {}
        self._sources = SourceFinder()

    def source(self) -> str:
        """The user's line that the caller's caller comes from."""
        return self._sources.find(3)[0]

    def release(self) -> None:
        """Let go of the step's frames."""
        self._sources.release()

    def head(self, frame: FrameType) -> Head:
        """Where the op that is about to run belongs; its events are next."""
        first = len(self._graph)
        where: str
        stage, phase, micro_step, where, module, in_loss = self._context.place
        owner, user_code, recomputed = None, False, False
        name, sequence = None, -1
        source, loss_frame, in_engine = self._sources.above(frame)
        in_loss = in_loss or loss_frame
        node: Any = _current_node()
        if node is None:
            self._owners.setdefault(_sequence_number() - 1, first)
        elif self._recomputes():
            recomputed = True
            self._owners.setdefault(_sequence_number() - 1, first)
            origin = self._owner(node._sequence_nr())
            if origin is not None and not self._context.modules:
                # outside of any module call it is where the checkpointed forward was
                at = self._graph.head(origin)
                where, module, in_loss = at[WHERE], at[MODULE], at[IN_LOSS]
        else:
            name, user_code = self._short(node.name()), not in_engine
            sequence = node._sequence_nr()
            owner = self._owner(sequence)
            if torch.is_grad_enabled():  # create_graph: this op makes nodes of its own
                self._owners.setdefault(_sequence_number() - 1, first)
            if owner is not None:
                at = self._graph.head(owner)
                where, module, in_loss = at[WHERE], at[MODULE], at[IN_LOSS]
                if not user_code:  # a hook or a custom backward has a line of its own
                    source = at[SOURCE] or source
        number = self._calls
        self._calls = number + 1
        calls = self._numbering
        return (
            number, stage, phase, micro_step, where, module, in_loss, source, name, sequence,
            owner, recomputed, user_code, calls.current, calls.name,
        )  # fmt: skip

    def _recomputes(self) -> bool:
        """Whether an op within backward repeats a checkpointed forward (DESIGN rule 5)."""
        grad_mode = torch.is_grad_enabled()
        began_with = self._graph_tasks.setdefault(_current_task(), grad_mode)
        return grad_mode and not began_with

    def _owner(self, sequence: int) -> int | None:
        """The forward event whose autograd node has a sequence number."""
        owner = self._owners.get(sequence)
        return owner if owner is not None and owner < len(self._graph) else None

    def _short(self, name: str) -> str:
        short = self._node_names.get(name)
        if short is None:
            short = self._node_names[name] = name.rpartition("::")[2]
        return short
