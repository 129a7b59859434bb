"""Snapshots of tensors and of the plain containers that hold them.

A copy-on-write snapshot costs about a microsecond a tensor and nothing more unless the original is
written while the snapshot is held. ``torch._lazy_clone`` is private; a test pins what is used here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from workbench.evidence.records import FieldTuple, Missing

How = Literal["cow", "copy", "assumed"]
"""``cow`` and ``copy`` were taken before the step ran; ``assumed`` was read when it tripped."""

SCALARS = (bool, int, float, complex, str, bytes, type(None))
DEEPEST = 60
"""Levels of nesting of a tree that are copied."""
LARGEST_CONTAINER = 4096
"""Most entries of a plain container that counts as state; longer ones are histories or tables."""


class Kept(NamedTuple):
    """One tensor as it was.

    Attributes:
        tensor: The snapshot, same shape, dtype and strides.
        how: How it was kept.
        storage: Which storage the original used; equal values mean shared storage.
        device: Type of the original's device where the snapshot is on another; else empty.
    """

    tensor: Tensor
    how: How
    storage: int
    device: str = ""


_PLAIN = frozenset({Tensor, nn.Parameter})


def keep(t: Tensor) -> Kept:
    """Take a snapshot of a tensor: copy-on-write, or a real copy where torch refuses.

    Refused are tensors over shared memory, numpy arrays and mapped files, and sparse tensors.
    """
    if type(t) in _PLAIN:
        # without grad mode a copy-on-write clone of a leaf needs no detaching first
        if t.requires_grad and (torch.is_grad_enabled() or not t.is_leaf):
            t = t.detach()
        try:
            return Kept(torch._lazy_clone(t), "cow", t.untyped_storage()._cdata)
        except (RuntimeError, NotImplementedError):
            pass
    local = getattr(t, "to_local", None)
    if local is not None:
        t = local()
    with torch.no_grad():
        try:
            if t.requires_grad:
                t = t.detach()
            return Kept(torch._lazy_clone(t), "cow", t.untyped_storage()._cdata)
        except (RuntimeError, NotImplementedError):
            return Kept(exact_copy(t.detach()), "copy", storage_key(t))


def assume(t: Tensor) -> Kept:
    """Copy a tensor that is read only now although its value from before the step is meant."""
    kept = keep(t)
    return kept._replace(how="assumed")


def storage_key(t: Tensor) -> int:
    """Return a number that two live tensors share exactly when they share storage."""
    if t.layout is torch.strided:
        return int(t.untyped_storage()._cdata)
    return id(t)


def exact_copy(t: Tensor, device: torch.device | str | None = None) -> Tensor:
    """Copy a tensor with its strides; positions it holds several times stay one element."""
    device = torch.device(device) if device is not None else t.device
    if t.layout is not torch.strided or t.is_quantized:
        return t.to(device, copy=True)
    t = t.resolve_conj().resolve_neg()
    # an expanded dimension has stride 0: copy its one element, then expand again
    index = tuple(
        slice(0, 1) if stride == 0 and size > 1 else slice(None)
        for size, stride in zip(t.shape, t.stride(), strict=True)
    )
    core = t[index] if index else t
    if _overlaps(core):
        return t.to(device).clone(memory_format=torch.contiguous_format)
    copy = torch.empty_strided(core.shape, core.stride(), dtype=t.dtype, device=device)
    copy.copy_(core)
    return copy.as_strided(t.shape, t.stride(), 0)


def _overlaps(t: Tensor) -> bool:
    """Whether two positions of a tensor may be the same element."""
    extent = 1
    sizes = sorted((stride, size) for size, stride in zip(t.shape, t.stride(), strict=True))
    for stride, size in sizes:
        if size <= 1:
            continue
        if stride < extent:
            return True
        extent = stride * (size - 1) + extent
    return False


def shared_storages(kept: Mapping[str, Kept]) -> dict[str, Tensor]:
    """Give snapshots the sharing of their originals: one storage where there was one.

    Args:
        kept: Snapshots by name; each was taken on its own.

    Returns:
        Tensors by name; those whose originals shared storage share it again.
    """
    bases: dict[int, Tensor] = {}
    result: dict[str, Tensor] = {}
    for name, item in kept.items():
        base = bases.setdefault(item.storage, item.tensor)
        result[name] = item.tensor if base is item.tensor else _view_like(item, base)
    return result


def _view_like(item: Kept, base: Tensor) -> Tensor:
    t = item.tensor
    # a real copy has a storage of its own size, where the original's offset means nothing
    if item.how == "copy" or base.layout is not torch.strided or base.dtype != t.dtype:
        return t
    if base.untyped_storage().nbytes() != t.untyped_storage().nbytes():
        return t
    view = torch.empty(0, dtype=t.dtype, device=t.device)
    return view.set_(base.untyped_storage(), t.storage_offset(), t.shape, t.stride())


Tree = Any
"""Nested dicts, lists, tuples, dataclasses, scalars, arrays and tensors."""


def copy_tree(tree: Tree, leaf: Callable[[Tensor], Any]) -> Tree:
    """Copy containers, replace every tensor by ``leaf(tensor)``, copy arrays, keep other leaves.

    Args:
        tree: Any nesting of dict, list, tuple, named tuple, deque and dataclass. A container inside
            itself, or deeper than ``DEEPEST``, becomes a ``Missing``.
        leaf: What becomes of a tensor.
    """
    return _TreeCopy(leaf).copy(tree)


class _TreeCopy:
    def __init__(self, leaf: Callable[[Tensor], Any]) -> None:
        self._leaf = leaf
        self._open: set[int] = set()

    def copy(self, tree: Tree) -> Tree:
        if isinstance(tree, Tensor):
            return self._leaf(tree)
        if isinstance(tree, np.ndarray):
            return tree.copy()
        copier = self._copier(tree)
        if copier is None:
            return tree
        if id(tree) in self._open or len(self._open) >= DEEPEST:
            return Missing(f"{type(tree).__name__} (nests too deep, or contains itself)")
        self._open.add(id(tree))
        try:
            return copier(tree)
        finally:
            self._open.discard(id(tree))

    def _copier(self, tree: Tree) -> Callable[[Any], Any] | None:
        if isinstance(tree, Missing):
            return None
        if isinstance(tree, Mapping):
            return self._mapping
        if isinstance(tree, tuple):
            return self._tuple
        if isinstance(tree, list):
            return lambda items: [self.copy(value) for value in items]
        if isinstance(tree, deque):
            return lambda items: deque((self.copy(value) for value in items), items.maxlen)
        if is_dataclass(tree) and not isinstance(tree, type):
            return self._dataclass
        return None

    def _tuple(self, tree: tuple[Any, ...]) -> Any:
        items = [self.copy(value) for value in tree]
        if isinstance(tree, FieldTuple):
            return FieldTuple(tree._fields, items)
        # not the class's own constructor: it may check its fields, or take others (PackedSequence)
        return tuple.__new__(type(tree), items) if hasattr(tree, "_fields") else tuple(items)

    def _mapping(self, tree: Mapping[Any, Any]) -> Any:
        items = {key: self.copy(value) for key, value in tree.items()}
        if type(tree) is dict:
            return items
        try:
            return type(tree)(items)  # type: ignore[call-arg]
        except TypeError:  # a mapping with another constructor, such as defaultdict
            return items

    def _dataclass(self, tree: Any) -> Any:
        copy = object.__new__(type(tree))
        for field in fields(tree):
            if hasattr(tree, field.name):
                object.__setattr__(copy, field.name, self.copy(getattr(tree, field.name)))
        return copy


def snapshot_tree(tree: Tree) -> Tree:
    """Copy a tree with every tensor as a snapshot (a batch, an optimizer's state).

    A tensor that cannot be copied (a nested one, one of a foreign kind) becomes a ``Missing``, so
    that the rest is kept.
    """
    return copy_tree(tree, _snapshot)


def _snapshot(t: Tensor) -> Tensor | Missing:
    try:
        return keep(t).tensor
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        return Missing(f"{type(t).__module__}:{type(t).__name__} ({why[:120]})")


def plain(value: Any) -> bool:
    """Whether a value is state that can be stored: scalars, tensors, arrays and nests of them."""
    return _plain(value, [LARGEST_CONTAINER])


def _plain(value: Any, budget: list[int]) -> bool:
    budget[0] -= 1
    if budget[0] < 0 or isinstance(value, nn.Parameter):
        return False
    kind = type(value)
    if kind in SCALARS or isinstance(value, Tensor):
        return True
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biufc"
    if isinstance(value, np.generic):
        return True
    if kind in (list, tuple, deque) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return all(_plain(item, budget) for item in value)
    if kind is dict:
        return all(
            type(key) in (str, int, bool) and _plain(item, budget) for key, item in value.items()
        )
    return False
