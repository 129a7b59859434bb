"""Gradients looked at before DDP reduces them: a communication hook around the user's.

The reduction itself is the one that runs without the recorder: the user's hook, or DDP's own
average, with the same bits. Its future is handed on through one that can be ended from outside, so
that this rank does not wait for a rank that has raised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch import distributed as dist

from workbench.errors import RankError
from workbench.record.ranks.buckets import Look

if TYPE_CHECKING:
    from workbench.record.ranks.watch import Watch

Future = Any
Hook = Callable[[Any, Any], Future]


class DdpReduction:
    """The hook of one ``DistributedDataParallel``.

    Args:
        wrapper: The DDP module.
        look: What was seen of the buckets.
        watch: News of other ranks.
    """

    def __init__(self, wrapper: Any, look: Look, watch: Watch) -> None:
        self._group = wrapper.process_group
        self._share = 1.0 / self._group.size()
        self._look, self._watch = look, watch
        self._inner: tuple[Hook, Any] | None = None
        self._open: set[Future] = set()
        self._lock = threading.Lock()
        watch.interrupts.append(self.interrupt)

    def install(self, wrapper: Any) -> str | None:
        """Register the hook; nothing is changed where that cannot be done faithfully.

        Returns:
            Why gradients are not looked at before they are reduced; None where they are.
        """
        hooks = list(wrapper._comm_hooks)
        if getattr(wrapper, "_use_python_reducer", False) or wrapper.mixed_precision is not None:
            return "DDP with its own mixed precision or python reducer takes no further hook"
        if len(hooks) > 1:
            return "several communication hooks are registered"
        if hooks:
            if wrapper._lazy_init_ran:
                return "a communication hook was registered and used before the first recorded step"
            self._inner = hooks[0]
            self._build_again(wrapper)
        try:  # past the wrapper's list of hooks: a pickled wrapper holds the user's alone
            register: Any = vars(dist)["_register_comm_hook"]
            register(wrapper.reducer, None, self.hook)
        except RuntimeError as error:
            return f"DDP took no hook: {str(error).partition(chr(10))[0][:120]}"
        return None

    @property
    def waiting(self) -> bool:
        """Whether a reduction of this rank has begun and not ended."""
        return bool(self._open)

    def hook(self, state: Any, bucket: Any) -> Future:
        """Look at a bucket, and reduce it as without the recorder."""
        del state
        buffer = bucket.buffer()
        self._look.begin(bucket.index(), buffer, bucket.parameters, bucket.gradients)
        if bucket.is_last():
            self._look.end_round()
        if self._inner is not None:
            hook, own = self._inner
            return self._guarded(hook(own, bucket), buffer, single=True)
        if buffer.is_sparse:
            buffer.div_(self._group.size())
        else:
            buffer.mul_(self._share)  # as DDP does while it fills the bucket: the same bits
        work = dist.all_reduce(buffer, group=self._group, async_op=True)
        return self._guarded(work.get_future(), buffer, single=False)

    def interrupt(self, problem: RankError) -> None:
        """End every reduction that has begun with an error."""
        with self._lock:
            waiting, self._open = list(self._open), set()
            if waiting:
                self._watch.interrupted = problem
        for future in waiting:
            with suppress(RuntimeError):  # it ended by itself just now
                future.set_exception(problem)

    def _guarded(self, inner: Future, buffer: Tensor, single: bool) -> Future:
        on_device = buffer.device.type != "cpu"
        outer: Future = torch.futures.Future(devices=[buffer.device] if on_device else None)
        with self._lock:
            self._open.add(outer)

        def finish(done: Future) -> None:
            with self._lock:
                if outer not in self._open:
                    return
                self._open.discard(outer)
            try:
                value = done.value()
            except Exception as error:  # noqa: BLE001 - handed on to backward, which raises it
                outer.set_exception(error)
                return
            outer.set_result(value if single else value[0])

        inner.then(finish)
        self._watch.poke()
        return outer

    @staticmethod
    def _build_again(wrapper: Any) -> None:
        """Make the reducer anew, as unpickling does: it takes one hook only, once."""
        parameters, sparse = wrapper._build_params_for_reducer()
        names = wrapper._build_debug_param_to_name_mapping(parameters)
        wrapper._ddp_init_helper(parameters, sparse, names, wrapper.static_graph)
        if wrapper.static_graph:
            wrapper.reducer._set_static_graph()


def parameter_groups(names: dict[int, str], optimizers: Sequence[Any]) -> dict[str, str]:
    """The optimizer and parameter group of every parameter, by its name."""
    return {
        names[id(parameter)]: f"optimizer{number}.group{index}"
        for number, optimizer in enumerate(optimizers)
        for index, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
        if id(parameter) in names
    }
