"""Gradients looked at before FSDP2 reduces them: its own place for another reduce-scatter.

``FSDPModule.set_custom_reduce_scatter`` takes an object that allocates the buffers and runs the
collective. This one looks at the input, cast to the dtype of the reduction and divided as FSDP2
does, and hands on to the one that was there before. All-gathers are handed on in the same way, so
that a rank whose neighbour raised does not wait in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from workbench.record.ranks.buckets import Look
from workbench.step.names import walk

if TYPE_CHECKING:
    from torch import nn

    from workbench.record.ranks.watch import Watch


class ShardedReduction:
    """The reductions of all FSDP2 modules of a model.

    Args:
        look: What was seen of the gradients.
        watch: News of other ranks.
    """

    def __init__(self, look: Look, watch: Watch) -> None:
        self.look, self.watch = look, watch
        self.waiting = False

    def install(self, model: nn.Module) -> str | None:
        """Put the reduction around that of every FSDP2 module.

        Returns:
            Why some gradients are not looked at before they are reduced; None where all are.
        """
        why = None
        self.look.learn()
        module: Any
        for path, module in walk(model):
            if not hasattr(module, "set_custom_reduce_scatter"):
                continue
            groups = getattr(module._get_fsdp_state(), "_fsdp_param_groups", [])
            if len(groups) > 1:
                why = "an FSDP2 module with several meshes takes no other reduce-scatter"
                continue
            for group in groups:
                if type(group._reduce_scatter_comm).__name__ == "SymmMemReduceScatter":
                    why = "reduce-scatter in symmetric memory was left alone"
                    continue
                inner = group._reduce_scatter_comm
                module.set_custom_reduce_scatter(_ReduceScatter(self, inner, path, group))
                gather = group._all_gather_comm
                if type(gather).__name__ == "DefaultAllGather":
                    module.set_custom_all_gather(_Handed(self, gather))
        return why

    def run(self, inner: Any, given: dict[str, Any]) -> Any:
        """Run a collective; on the CPU, wait for it no longer than until there is news."""
        if given.get("async_op") or given["input_tensor"].device.type != "cpu":
            return inner(**given)
        work = inner(**{**given, "async_op": True})
        if work is None:
            return None
        self.waiting = True
        try:
            self.watch.wait(work)
        finally:
            self.waiting = False
        return None


class _Handed:
    """A collective of FSDP2 that hands on to the one that was there."""

    def __init__(self, owner: ShardedReduction, inner: Any) -> None:
        self._owner, self._inner = owner, inner

    def allocate(self, size: Sequence[int], *, dtype: Any, device: Any) -> Tensor:
        """Allocate as the inner one does."""
        found: Tensor = self._inner.allocate(size, dtype=dtype, device=device)
        return found

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, **more: Any) -> Any:
        """Run the inner one."""
        given = {"output_tensor": output_tensor, "input_tensor": input_tensor, "group": group}
        return self._owner.run(self._inner, {**given, **more})


class _ReduceScatter(_Handed):
    """Looks at what is about to be reduced and scattered."""

    def __init__(self, owner: ShardedReduction, inner: Any, path: str, params: Any) -> None:
        super().__init__(owner, inner)
        self._path, self._params = path, params

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, **more: Any) -> Any:
        """Look, then reduce and scatter."""
        names, parts = self._parts(input_tensor, group.size())
        look = self._owner.look
        look.begin(self._path, input_tensor, lambda: names, lambda: parts)
        return super().__call__(output_tensor, input_tensor, group, **more)

    def _parts(self, whole: Tensor, world: int) -> tuple[list[Any], list[Tensor]]:
        """The columns of the input that belong to each parameter: a row goes to each rank."""
        used = [one for one in self._params.fsdp_params if one.sharded_param.requires_grad]
        sizes = [one.padded_sharded_param_size.numel() for one in used]
        rows = whole.view(world, -1)
        if sum(sizes) != rows.shape[1]:  # not every parameter has a gradient
            return [], [whole]
        return [one.sharded_param for one in used], list(rows.split(sizes, dim=1))
