"""Tensors split over ranks: which part of the whole a rank holds, and the whole from its parts.

Each rank writes its own part and says where it belongs. Nothing is gathered while a job is failing:
a gather needs every rank, and one of them may be dead. The whole is put together when it is read.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Run = tuple[int, int]
"""Begin and end of consecutive indices."""
_MOST_RUNS = 1 << 16
_MOST_ELEMENTS = 1 << 48


@dataclass(frozen=True)
class Shard:
    """Where one rank's part of a tensor belongs.

    Attributes:
        shape: Shape of the whole tensor.
        runs: Per dimension the indices that this rank holds, as runs in ascending order.
        placements: How the tensor lies on the mesh, a word per mesh dimension.
        mesh: Name of every mesh dimension, with this rank's coordinate and its size.
    """

    shape: tuple[int, ...]
    runs: tuple[tuple[Run, ...], ...]
    placements: tuple[str, ...] = ()
    mesh: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of the part."""
        return tuple(sum(end - begin for begin, end in runs) for runs in self.runs)

    @property
    def whole(self) -> bool:
        """Whether this rank holds all of it."""
        return self.local_shape == self.shape

    def as_tree(self) -> dict[str, Any]:
        """Plain values for a bundle."""
        return {
            "shape": list(self.shape),
            "runs": [[list(run) for run in runs] for runs in self.runs],
            "placements": list(self.placements),
            "mesh": {name: list(place) for name, place in self.mesh.items()},
        }

    @classmethod
    def from_tree(cls, tree: Any) -> Shard:
        """Read what ``as_tree`` wrote.

        Raises:
            ValueError: Sizes that are no natural numbers, or runs that overlap or lie outside of
                the tensor.
        """
        shape = tuple(_natural(size) for size in tree["shape"])
        runs = tuple(
            tuple((_natural(begin), _natural(end)) for begin, end in runs) for runs in tree["runs"]
        )
        if len(runs) != len(shape) or math.prod(len(r) for r in runs) > _MOST_RUNS:
            raise ValueError("a shard has other dimensions than its tensor")
        for size, of_dimension in zip(shape, runs, strict=True):
            last = 0
            for begin, end in of_dimension:
                if not last <= begin <= end <= size:
                    raise ValueError("a shard lies outside of its tensor")
                last = end
        mesh = {
            str(n): (_natural(at), _natural(size)) for n, (at, size) in tree.get("mesh", {}).items()
        }
        return cls(shape, runs, tuple(str(p) for p in tree.get("placements", ())), mesh)


def _natural(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST_ELEMENTS:
        raise ValueError("a size of a shard is not a natural number")
    return value


def shard_of(t: Any) -> Shard | None:
    """Say where the local part of a distributed tensor belongs; None for any other tensor.

    Raises:
        ValueError: The local part is a partial sum, or this rank is not of the tensor's mesh.
    """
    mesh, placements = getattr(t, "device_mesh", None), getattr(t, "placements", None)
    if mesh is None or placements is None:
        return None
    here = mesh.get_coordinate()
    if here is None:
        raise ValueError("this rank is not of the tensor's device mesh")
    names = mesh.mesh_dim_names or tuple(f"dim{i}" for i in range(mesh.ndim))
    indices: list[Tensor] = [torch.arange(size) for size in t.shape]
    for number, placement in enumerate(placements):
        if placement.is_partial():
            raise ValueError("a partial sum has no place of its own")
        dim = getattr(placement, "dim", None)
        if dim is None:
            continue
        dim %= len(indices)
        spread = [1] * len(indices)
        spread[dim] = len(indices[dim])
        pieces, _ = placement._split_tensor(
            indices[dim].reshape(spread), mesh.size(number), with_padding=False
        )
        indices[dim] = pieces[here[number]].reshape(-1)
    return Shard(
        tuple(int(size) for size in t.shape),
        tuple(_runs(one.tolist()) for one in indices),
        tuple(_placement_words(one) for one in placements),
        {str(n): (int(at), int(size)) for n, at, size in zip(names, here, mesh.shape, strict=True)},
    )


def _placement_words(placement: Any) -> str:
    dim = getattr(placement, "dim", None)
    return "Replicate" if dim is None else f"Shard({dim})"


def _runs(indices: Sequence[int]) -> tuple[Run, ...]:
    found: list[list[int]] = []
    for index in indices:
        if found and found[-1][1] == index:
            found[-1][1] = index + 1
        else:
            found.append([index, index + 1])
    return tuple((begin, end) for begin, end in found)


class Whole:
    """A tensor that is put together from the parts of several ranks.

    Nothing as large as the whole is allocated before parts of that many elements are there.

    Args:
        shard: Where the first part belongs.
        local: The first part.
    """

    def __init__(self, shard: Shard, local: Tensor) -> None:
        self.shape = shard.shape
        self._dtype = local.dtype
        self._parts: dict[tuple[tuple[Run, ...], ...], Tensor] = {}
        self._tensor: Tensor | None = None
        self.add(shard, local)

    def add(self, shard: Shard, local: Tensor) -> None:
        """Take one part; a part that is there already (replicated) is left out.

        Raises:
            ValueError: The part is of another tensor.
        """
        fits = shard.shape == self.shape and tuple(local.shape) == shard.local_shape
        if not fits or local.dtype != self._dtype:
            raise ValueError("the parts of a tensor do not fit each other")
        if shard.runs not in self._parts:
            self._parts[shard.runs] = local
            self._tensor = None

    @property
    def complete(self) -> bool:
        """Whether no element is missing."""
        return sum(part.numel() for part in self._parts.values()) >= math.prod(self.shape)

    @property
    def tensor(self) -> Tensor:
        """The whole tensor.

        Raises:
            ValueError: Elements are missing, or two parts claim the same one.
        """
        if self._tensor is None:
            self._tensor = self._assembled()
        return self._tensor

    def _assembled(self) -> Tensor:
        if not self.complete:
            raise ValueError("a part of the tensor is missing")
        whole = torch.empty(self.shape, dtype=self._dtype)
        placed = torch.zeros(self.shape, dtype=torch.bool)
        for runs, part in self._parts.items():
            for target, source in _blocks(runs):
                into = tuple(slice(begin, end) for begin, end in target)
                if bool(placed[into].any()):
                    raise ValueError("two parts of a tensor overlap")
                placed[into] = True
                whole[into] = part[tuple(slice(begin, end) for begin, end in source)]
        if not bool(placed.all()):
            raise ValueError("a part of the tensor is missing")
        return whole


def _blocks(
    runs: Sequence[Sequence[Run]],
) -> Iterator[tuple[tuple[Run, ...], tuple[Run, ...]]]:
    """Every block of consecutive indices: where in the whole, and where in the part."""
    placed: list[list[tuple[Run, Run]]] = []
    for of_dimension in runs:
        at, pairs = 0, []
        for begin, end in of_dimension:
            pairs.append(((begin, end), (at, at + end - begin)))
            at += end - begin
        placed.append(pairs)
    for chosen in itertools.product(*placed):
        yield tuple(pair[0] for pair in chosen), tuple(pair[1] for pair in chosen)


__all__ = ["Shard", "Whole", "shard_of"]
