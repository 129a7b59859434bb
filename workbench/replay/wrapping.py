"""Wrapping a model as the run did, where all ranks are replayed together: DDP, FSDP2, HSDP.

An optimizer holds plain parameters until then. FSDP2 puts distributed ones in their place, so that
what the optimizer knows of each goes over to its new parameter, split in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from workbench.errors import CannotRunError
from workbench.evidence.wording import joined
from workbench.step.names import named_parameters, walk

if TYPE_CHECKING:
    from torch.optim import Optimizer

Wrap = Callable[[nn.Module, bool], nn.Module]
"""Wraps a plain model; whether FSDP2's mixed precision is applied."""

_DTYPES = ("float16", "bfloat16", "float32", "float64")


def wrapper_of(parallel: Mapping[str, Any], path: str, device: str) -> Wrap:
    """How to wrap the model of a bundle.

    Args:
        parallel: How the model was spread, from ``ranks.json``.
        path: The bundle, for messages.
        device: Where the replay runs.

    Raises:
        CannotRunError: It was spread by something else than DDP and FSDP2, or over another mesh.
    """
    kinds = parallel.get("kinds") or []
    other = [str(kind) for kind in kinds if kind not in ("ddp", "fsdp2")]
    if other:
        raise CannotRunError(
            f"The step of {path!r} was spread by {joined(other)}, which is set up by "
            "the training script and not by the bundle, so it is not built again here. What was "
            "recorded can be read with: workbench inspect"
        )
    ddp, fsdp = parallel.get("ddp"), parallel.get("fsdp")
    if isinstance(fsdp, Mapping) and fsdp:
        mesh = _mesh(parallel, path, device)
        return lambda model, casts: _fully_sharded(model, fsdp, mesh, casts)
    return lambda model, casts: _data_parallel(model, ddp if isinstance(ddp, Mapping) else {})


def wrapped(
    wrap: Wrap, model: nn.Module, optimizers: Sequence[Optimizer], *, casts: bool = True
) -> nn.Module:
    """Wrap a model, and have its optimizers go on with the parameters it then has.

    Args:
        wrap: How.
        model: The plain model, restored.
        optimizers: Its optimizers, restored.
        casts: Whether FSDP2's mixed precision is applied.
    """
    names = {id(p): name for name, p in named_parameters(model)}
    model = wrap(model, casts)
    now = dict(named_parameters(model))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [now.get(names.get(id(p), ""), p) for p in group["params"]]
        for old in list(optimizer.state):
            new = now.get(names.get(id(old), ""), old)
            if new is not old:
                entries = optimizer.state.pop(old)
                optimizer.state[new] = {k: _as(v, old, new) for k, v in entries.items()}
    return model


def _as(value: Any, old: Tensor, new: Any) -> Any:
    """An entry of an optimizer's state, split as its parameter is."""
    mesh = getattr(new, "device_mesh", None)
    if mesh is None or not isinstance(value, Tensor) or value.shape != old.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, mesh, new.placements, src_data_rank=None)


# -- DDP ------------------------------------------------------------------------------------------


def _data_parallel(model: nn.Module, said: Mapping[str, Any]) -> nn.Module:
    cap = said.get("bucket_bytes_cap")
    more: dict[str, Any] = {}
    if not said.get("broadcast_buffers", True):
        more["broadcast_buffers"] = False
    device = next(model.parameters()).device
    return nn.parallel.DistributedDataParallel(
        model,
        device_ids=[device] if device.type == "cuda" else None,
        init_sync=False,  # each rank's own parameters, as they were
        **more,
        find_unused_parameters=bool(said.get("find_unused_parameters", False)),
        gradient_as_bucket_view=bool(said.get("gradient_as_bucket_view", False)),
        bucket_cap_mb=cap / (1 << 20) if isinstance(cap, int) else None,
    )


# -- FSDP2 ----------------------------------------------------------------------------------------


def _mesh(parallel: Mapping[str, Any], path: str, device: str) -> Any:
    """The mesh of several dimensions that parameters were spread over; None for one of all ranks.

    Every rank has to come here: its process groups are made together.
    """
    said = parallel.get("mesh")
    sizes = {str(k): v for k, v in said.items()} if isinstance(said, Mapping) else {}
    if len(sizes) < 2:
        return None
    from torch.distributed.device_mesh import init_device_mesh

    shape = tuple(int(size) for _, size in sizes.values())
    mesh = init_device_mesh(torch.device(device).type, shape, mesh_dim_names=tuple(sizes))
    if list(mesh.get_coordinate() or ()) != [int(at) for at, _ in sizes.values()]:
        raise CannotRunError(
            f"The ranks of {path!r} stood on their device mesh {list(sizes)} in another order than "
            "by number, so its groups are not made again here. Replay one rank without torchrun."
        )
    return mesh


def _fully_sharded(model: nn.Module, said: Mapping[str, Any], mesh: Any, casts: bool) -> nn.Module:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    modules = dict(walk(model))
    more: dict[str, Any] = {} if mesh is None else {"mesh": mesh}
    for path in sorted(map(str, said), key=lambda p: -p.count(".") - bool(p)):  # inner ones first
        one = said[path]
        if path not in modules or not isinstance(one, Mapping):
            continue
        policy = MixedPrecisionPolicy()
        if casts:
            policy = MixedPrecisionPolicy(
                param_dtype=_dtype(one.get("param_dtype")),
                reduce_dtype=_dtype(one.get("reduce_dtype")),
                output_dtype=_dtype(one.get("output_dtype")),
                cast_forward_inputs=bool(one.get("cast_forward_inputs", True)),
            )
        fully_shard(modules[path], mp_policy=policy, **more)
    return model


def _dtype(name: Any) -> torch.dtype | None:
    return cast("torch.dtype", getattr(torch, name)) if name in _DTYPES else None
