"""Who this rank is: its number, and its place among data, tensor and pipeline ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import distributed as dist

from workbench.step.names import named_parameters

if TYPE_CHECKING:
    from torch import nn

_KINDS: Final[Mapping[str, frozenset[str]]] = {
    "dp_rank": frozenset(
        {"dp", "ddp", "data", "fsdp", "replicate", "shard", "dp_replicate", "dp_shard"}
    ),
    "tp_rank": frozenset({"tp", "tensor", "model", "mp"}),
    "pp_rank": frozenset({"pp", "pipe", "pipeline", "stage"}),
}
"""Names of the dimensions of a device mesh, as they are in use."""


@dataclass(frozen=True)
class Place:
    """Where a rank stands.

    Attributes:
        rank: Its number among all that train together.
        world: How many those are.
        parallel: ``dp_rank``, ``tp_rank`` and ``pp_rank``, as far as they are known.
        mesh: Name of every mesh dimension, with this rank's coordinate and the size.
    """

    rank: int = 0
    world: int = 1
    parallel: Mapping[str, int] = field(default_factory=dict)
    mesh: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def running() -> bool:
    """Whether ``torch.distributed`` is set up in this process."""
    return dist.is_available() and dist.is_initialized()


def find_place(model: nn.Module, group: Any = None, mesh: Any = None) -> Place:
    """Find out where this rank stands.

    Args:
        model: The model: its wrapper or its distributed parameters may know a mesh.
        group: The process group that trains together; None for all ranks.
        mesh: The device mesh; None looks for it at the model.
    """
    if not running():
        return Place()
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:  # not one of the group
        return Place()
    found = mesh if mesh is not None else next(_meshes(model), None)
    sizes = {} if found is None else _coordinates(found)
    parallel = _parallel(sizes)
    if not parallel and found is not None and _is_sharded(model) and len(sizes) == 1:
        parallel = {"dp_rank": next(iter(sizes.values()))[0]}
    wrapper = data_parallel(model)
    if wrapper is not None and "dp_rank" not in parallel:
        parallel = {"dp_rank": dist.get_rank(wrapper.process_group)} | parallel
    return Place(rank, world, parallel, sizes)


def data_parallel(model: nn.Module) -> Any:
    """The ``DistributedDataParallel`` wrapper of a model, or None."""
    if not dist.is_available():
        return None
    kind = torch.nn.parallel.DistributedDataParallel
    return next((module for module in model.modules() if isinstance(module, kind)), None)


def _is_sharded(model: nn.Module) -> bool:
    return any(type(module).__name__.startswith("FSDP") for module in model.modules())


def _meshes(model: nn.Module) -> Iterator[Any]:
    for _, parameter in named_parameters(model):
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is not None:
            root = getattr(mesh, "_get_root_mesh", None)  # a slice does not know pipeline ranks
            yield mesh if root is None else root()


def _coordinates(mesh: Any) -> dict[str, tuple[int, int]]:
    names = mesh.mesh_dim_names or tuple(f"dim{i}" for i in range(mesh.ndim))
    here = mesh.get_coordinate()
    if here is None:  # this rank is outside of the mesh
        return {}
    return {
        str(name): (int(at), int(size))
        for name, at, size in zip(names, here, mesh.shape, strict=True)
    }


def _parallel(sizes: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, (at, size) in sizes.items():
        for kind, words in _KINDS.items():
            if name.lower() in words:  # replicas of shards: one data-parallel rank of both
                found[kind] = found.get(kind, 0) * size + at
    return found
