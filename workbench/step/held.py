"""Many tensors held as they are now, in one go.

``torch._lazy_clone`` costs 0.8 µs a tensor; what else is noted of each would cost several times
that. So only the clones are taken here, and the rest is worked out when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from workbench.step.snapshots import Kept, keep

_QUICK = frozenset({Tensor, nn.Parameter})
# Private: the address of the storage object, which `t.untyped_storage()._cdata` gives too, six
# times slower. A test pins both.
_storage_of: Callable[[Tensor], int] = torch._C._storage_address  # type: ignore[attr-defined]


class Held:
    """Tensors and what was held of each.

    Args:
        tensors: The tensors, each once.
        clones: What was held of each: a copy-on-write clone, or what ``keep`` made of it.
        storages: Which storage each used; only where ``clones`` are tensors.
        requires_grad: Whether autograd tracked each.
        failed: Why some could not be held, by ``id``.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        clones: Sequence[Tensor | Kept | None],
        storages: list[int],
        requires_grad: list[bool],
        failed: dict[int, str],
    ) -> None:
        self.tensors = tensors
        self._clones = clones
        self._storages = storages
        self._requires_grad = requires_grad
        self.failed = failed

    def kept(self) -> dict[int, Kept]:
        """What was held, by ``id`` of the tensor."""
        found: dict[int, Kept] = {}
        for number, (tensor, clone) in enumerate(zip(self.tensors, self._clones, strict=True)):
            if isinstance(clone, Tensor):
                found[id(tensor)] = Kept(clone, "cow", self._storages[number])
            elif clone is not None:
                found[id(tensor)] = clone
        return found

    def requires_grad(self) -> dict[int, bool]:
        """Whether autograd tracked each when it was held, by ``id`` of the tensor."""
        return dict(zip(map(id, self.tensors), self._requires_grad, strict=True))

    def part(self, places: Sequence[int]) -> Held:
        """Only the tensors at these places."""
        return Held(
            [self.tensors[place] for place in places],
            [self._clones[place] for place in places],
            [self._storages[place] for place in places] if self._storages else [],
            [self._requires_grad[place] for place in places],
            self.failed,
        )

    def clones_of(self, wanted: Collection[int]) -> dict[int, Tensor]:
        """The copy-on-write clones of plain tensors, by place.

        Args:
            wanted: The tensors, by ``id``.
        """
        found: dict[int, Tensor] = {}
        for place, (tensor, clone) in enumerate(zip(self.tensors, self._clones, strict=True)):
            if id(tensor) not in wanted or type(tensor) not in _QUICK:
                continue
            if isinstance(clone, Tensor):
                found[place] = clone
            elif clone is not None and clone.how == "cow":
                found[place] = clone.tensor
        return found

    def replace(self, copies: Mapping[int, Tensor]) -> None:
        """Hold copies in place of clones.

        Args:
            copies: By place; what shared a storage shares it in them.
        """
        clones = list(self._clones)
        for place, copy in copies.items():
            old = clones[place]
            if isinstance(old, Tensor):
                clones[place] = Kept(copy, "copy", self._storages[place], old.device.type)
            elif old is not None:
                clones[place] = Kept(copy, "copy", old.storage, old.tensor.device.type)
        self._clones = clones

    def hold_again(self, places: Sequence[int]) -> None:
        """Hold the tensors at these places as they are now."""
        again = hold([self.tensors[place] for place in places])
        kept = self.kept() | again.kept()
        self._clones = [kept.get(id(tensor)) for tensor in self.tensors]
        self.failed = self.failed | again.failed


def hold(tensors: Sequence[Tensor]) -> Held:
    """Hold tensors as they are now; call it without grad mode.

    Args:
        tensors: The tensors, each once.
    """
    grads = [t.requires_grad for t in tensors]
    if _QUICK.issuperset(map(type, tensors)):
        try:
            clones = [torch._lazy_clone(t if t.is_leaf else t.detach()) for t in tensors]
            return Held(tensors, clones, list(map(_storage_of, tensors)), grads, {})
        except (RuntimeError, NotImplementedError):
            pass
    failed: dict[int, str] = {}
    kept: list[Kept | None] = []
    for t in tensors:
        try:
            kept.append(keep(t))
        except (RuntimeError, NotImplementedError, ValueError) as error:
            failed[id(t)] = f"a tensor of type {type(t).__name__} cannot be copied: {error}"
            kept.append(None)
    return Held(tensors, kept, [], grads, failed)
