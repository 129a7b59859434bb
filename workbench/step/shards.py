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
            ValueError: Runs that overlap or lie outside of the tensor.
        """
        shape = tuple(int(size) for size in tree["shape"])
        runs = tuple(tuple((int(a), int(b)) for a, b in runs) for runs in tree["runs"])
        if len(runs) != len(shape) or math.prod(len(r) for r in runs) > _MOST_RUNS:
            raise ValueError("a shard has other dimensions than its tensor")
        for size, of_dimension in zip(shape, runs, strict=True):
            last = 0
            for begin, end in of_dimension:
                if not last <= begin <= end <= size:
                    raise ValueError("a shard lies outside of its tensor")
                last = end
        mesh = {str(n): (int(at), int(size)) for n, (at, size) in tree.get("mesh", {}).items()}
        return cls(shape, runs, tuple(str(p) for p in tree.get("placements", ())), mesh)


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

    Args:
        shard: Where the first part belongs.
        local: The first part.
        ranks: How many ranks there may be; a whole larger than so many parts is refused.
    """

    def __init__(self, shard: Shard, local: Tensor, ranks: int) -> None:
        self.shape = shard.shape
        self._blocks: set[tuple[Run, ...]] = set()
        self._filled = 0
        parts = [math.prod(shard.local_shape), local.numel()]
        if math.prod(shard.shape) > (max(parts) + 1) * max(1, ranks) * 2 + (1 << 20):
            raise ValueError("the whole tensor would be larger than all its parts")
        self.tensor = torch.empty(shard.shape, dtype=local.dtype, device=local.device)
        self.add(shard, local)

    def add(self, shard: Shard, local: Tensor) -> None:
        """Put one part in its place; a part that is there already is left out.

        Raises:
            ValueError: The part is of another tensor.
        """
        fits = shard.shape == self.shape and tuple(local.shape) == shard.local_shape
        if not fits or local.dtype != self.tensor.dtype:
            raise ValueError("the parts of a tensor do not fit each other")
        for target, source in _blocks(shard.runs):
            if target in self._blocks:  # replicated
                continue
            self._blocks.add(target)
            self._filled += math.prod(end - begin for begin, end in target)
            into = tuple(slice(begin, end) for begin, end in target)
            self.tensor[into] = local[tuple(slice(begin, end) for begin, end in source)]

    @property
    def complete(self) -> bool:
        """Whether no element is missing."""
        return self._filled >= math.prod(self.shape)


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
