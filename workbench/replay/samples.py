"""Keep some samples of a batch, where it can be told what a sample is."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.errors import UsageError
from workbench.evidence.records import FieldTuple

_SHOWN = 6
_SCALARS = (str, bytes, int, float, bool, type(None))


@dataclass(frozen=True)
class Layout:
    """How the samples of a batch lie.

    Attributes:
        size: How many there are.
        listed: Whether lists hold one item a sample (images of different sizes, boxes); else they
            are along the leading dimension of tensors and arrays.
    """

    size: int
    listed: bool


def keep_samples(batch: Any, wanted: Sequence[int]) -> Any:
    """Keep some samples of a batch, in every field that has one entry a sample.

    Args:
        batch: Any nesting of containers, tensors and arrays.
        wanted: Indices to keep, in order.

    Raises:
        UsageError: It cannot be told what a sample is, an index is outside the batch, or nothing
            would be left.
    """
    layout = layout_of(batch)
    outside = [index for index in wanted if not 0 <= index < layout.size]
    if outside or not wanted:
        where = "in its lists" if layout.listed else "along its leading dimension"
        raise UsageError(
            f"The condition 'keep_samples' was set to '{list(wanted)}', but the batch has "
            f"{layout.size} samples {where}, so nothing was run. Give at least one index between "
            f"0 and {max(layout.size - 1, 0)}."
        )
    return _keep(batch, list(wanted), layout)


def layout_of(batch: Any) -> Layout:
    """Tell how the samples of a batch lie.

    Raises:
        UsageError: Fields disagree about how many there are, or none has a leading dimension.
    """
    leaves = _leaves(batch, "batch")
    sizes = [len(value) for _, value in leaves if value.ndim > 0]
    if len(set(sizes)) > 1 and (listed := _listed(batch)):
        return Layout(listed, listed=True)
    most = {size for size in sizes if sizes.count(size) == max(map(sizes.count, sizes))}
    if len(most) != 1:
        shapes = [f"{name} {tuple(value.shape)}" for name, value in leaves[:_SHOWN]]
        more = f" and {len(leaves) - _SHOWN} more" if len(leaves) > _SHOWN else ""
        raise UsageError(
            "The condition 'keep_samples' needs to know along which dimension the samples of a "
            "batch lie, and it was not found, so nothing was run: the fields do not agree on a "
            f"leading dimension ({', '.join(shapes) or 'no tensors'}{more}). Keep fewer samples in "
            "the step's own code instead, or record batches with the samples first."
        )
    return Layout(most.pop(), listed=False)


def _leaves(tree: Any, name: str) -> list[tuple[str, Any]]:
    if isinstance(tree, Tensor | np.ndarray):
        return [(name, tree)]
    return [leaf for key, value in _children(tree) for leaf in _leaves(value, f"{name}{key}")]


def _children(tree: Any) -> list[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        return [(f"[{key!r}]", value) for key, value in tree.items()]
    if isinstance(tree, list | tuple):
        return [(f"[{i}]", value) for i, value in enumerate(tree)]
    if is_dataclass(tree) and not isinstance(tree, type):
        return [(f".{one.name}", getattr(tree, one.name)) for one in fields(tree)]
    return []


def _listed(batch: Any) -> int:
    """The length that all lists of unlike items of one kind share; 0 where there is none."""
    lengths = {len(items) for items in _lists(batch) if _ragged(items)}
    return lengths.pop() if len(lengths) == 1 else 0


def _lists(tree: Any) -> list[Sequence[Any]]:
    own = [tree] if isinstance(tree, list | tuple) else []
    return own + [found for _, value in _children(tree) for found in _lists(value)]


def _one_kind(items: Sequence[Any]) -> bool:
    if all(isinstance(item, Tensor | np.ndarray) for item in items):
        return len({(item.ndim, str(item.dtype)) for item in items}) == 1
    if all(isinstance(item, Mapping) for item in items):
        return len({tuple(item) for item in items}) == 1
    return all(isinstance(item, _SCALARS) for item in items)


def _ragged(items: Sequence[Any]) -> bool:
    if len(items) < 2 or not _one_kind(items) or isinstance(items[0], _SCALARS):
        return False
    shapes = [[tuple(leaf.shape) for _, leaf in _leaves(item, "")] for item in items]
    return any(shape != shapes[0] for shape in shapes)


def _keep(tree: Any, wanted: list[int], layout: Layout) -> Any:
    if isinstance(tree, Tensor | np.ndarray):
        return _of_array(tree, wanted, layout.size)
    if isinstance(tree, Mapping):
        return _like(tree, {key: _keep(value, wanted, layout) for key, value in tree.items()})
    if isinstance(tree, list | tuple):
        of_samples = len(tree) == layout.size and _one_kind(tree)
        if of_samples and (layout.listed or all(isinstance(item, _SCALARS) for item in tree)):
            return _sequence(tree, [tree[index] for index in wanted])
        return _sequence(tree, [_keep(item, wanted, layout) for item in tree])
    if is_dataclass(tree) and not isinstance(tree, type):
        return _with_fields(tree, wanted, layout)
    return tree


def _of_array(value: Any, wanted: list[int], size: int) -> Any:
    if value.ndim == 0 or len(value) != size:
        return value
    if isinstance(value, np.ndarray):
        return value[wanted]
    return value.index_select(0, torch.tensor(wanted, device=value.device))


def _like(tree: Mapping[Any, Any], kept: dict[Any, Any]) -> Any:
    other: Any = copy.copy(tree)
    for key, value in kept.items():
        other[key] = value
    return other


def _sequence(tree: Any, items: list[Any]) -> Any:
    if isinstance(tree, FieldTuple):
        return FieldTuple(tree._fields, items)
    if isinstance(tree, tuple):
        # not the class's own constructor: it may check its fields
        return tuple.__new__(type(tree), items) if hasattr(tree, "_fields") else tuple(items)
    return items


def _with_fields(tree: Any, wanted: list[int], layout: Layout) -> Any:
    other = copy.copy(tree)
    for one in fields(tree):
        object.__setattr__(other, one.name, _keep(getattr(tree, one.name), wanted, layout))
    return other
