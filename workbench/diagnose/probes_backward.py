"""The mirrored scan: tensor hooks on what goes between blocks, and on parameters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from workbench.diagnose.boundaries import NOTHING, Named, kinds_of
from workbench.diagnose.probes import (
    Place,
    Seen,
    Stop,
    among,
    finite_copy,
    modules_of,
    put_on,
    stage_of,
)
from workbench.replay.trace_focus import tensors_in
from workbench.step.names import named_parameters

if TYPE_CHECKING:
    from torch import Tensor, nn

    from workbench.replay.session import Session


@dataclass
class _Edge:
    """A tensor between blocks: who made it and who used it."""

    made_by: Place | None
    used_by: list[Place] = field(default_factory=list)


class GradientScan:
    """Stops at the first bad gradient, at a tensor between blocks or at a parameter.

    Args:
        targets: Modules whose inputs and outputs are looked at, none inside another.
        passed: Places not to stop at again.
        patches: Places where non-finite gradients are set to zero.
        stop: Whether to end the run at a bad gradient.
    """

    def __init__(
        self,
        targets: Sequence[Named],
        passed: Collection[Place] = (),
        patches: Collection[Place] = (),
        *,
        stop: bool = True,
    ) -> None:
        self._targets, self._stops = targets, stop
        self._passed, self._patches = frozenset(passed), frozenset(patches)
        self._edges: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self._counts: dict[str, int] = {}
        self._session: Session | None = None
        self.looked = 0

    def __call__(self, session: Session, stack: ExitStack) -> None:
        """Put the hooks on."""
        self._session = session
        modules = dict(modules_of(session))
        for path, _ in self._targets:
            module = modules[path]
            put_on(stack, module.register_forward_pre_hook(self._before(path), with_kwargs=True))
            put_on(stack, module.register_forward_hook(self._after(path)))
        for name, parameter in named_parameters(session.runner.model):
            if parameter.requires_grad:
                hook = self._gradient(Place("parameter", name), None)
                put_on(stack, parameter.register_hook(hook))

    def _before(self, path: str) -> Any:
        def before(_: nn.Module, args: Any, kwargs: Any) -> None:
            if self._recording:
                nth = self._counts[path] = self._counts.get(path, -1) + 1
                for tensor in tensors_in((args, kwargs)):
                    self._edge(tensor, used_by=Place("input", path, nth))

        return before

    def _after(self, path: str) -> Any:
        def after(_: nn.Module, args: Any, output: Any) -> None:
            del args
            if self._recording:
                for tensor in tensors_in(output):
                    self._edge(tensor, made_by=Place("output", path, self._counts.get(path, 0)))

        return after

    @property
    def _recording(self) -> bool:
        return self._session is not None and stage_of(self._session) in ("forward", "loss")

    def _edge(
        self, tensor: Tensor, made_by: Place | None = None, used_by: Place | None = None
    ) -> None:
        if not tensor.requires_grad or tensor.is_leaf:
            return
        edge = self._edges.get(tensor)
        if edge is None:
            edge = self._edges[tensor] = _Edge(made_by)
            own = made_by or used_by
            if own is not None:
                place = Place("gradient", f"{own.side} of {own.module}", own.nth)
                tensor.register_hook(self._gradient(place, edge))
        if used_by is not None:
            edge.used_by.append(used_by)

    def _gradient(self, place: Place, edge: _Edge | None) -> Any:
        def seen(gradient: Tensor) -> Tensor | None:
            if self._session is None or stage_of(self._session) != "backward":
                return None
            self.looked += 1
            kinds = kinds_of([gradient]) if gradient.layout == torch.strided else NOTHING
            if not kinds:
                return None
            if among(place, self._patches):
                return finite_copy(gradient)  # type: ignore[no-any-return]
            if self._stops and place not in self._passed:
                users = tuple(edge.used_by) if edge is not None else ()
                raise Stop(Seen(place, kinds, "backward", consumers=users, boundaries=self.looked))
            return None

        return seen
