"""How a model is spread over ranks, as a replay in one process needs to know it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.record.ranks.place import data_parallel
from workbench.step.names import named_parameters, walk
from workbench.step.shards import shard_of

if TYPE_CHECKING:
    from torch import nn

    from workbench.record.recorder import Recorder

_MOST = 4096
_PIPELINE = ("pp", "pipe", "pipeline", "stage")


def describe_parallel(recorder: Recorder) -> dict[str, Any]:
    """Say how the model is spread: kinds, mesh, and the settings that change what is computed.

    Args:
        recorder: The recorder.
    """
    model, place = recorder.model, recorder.place
    found: dict[str, Any] = {
        "kinds": [],
        "mesh": {name: list(at) for name, at in place.mesh.items()},
        "parallel": dict(place.parallel),
        "stages": next((n for k, (_, n) in place.mesh.items() if k.lower() in _PIPELINE), None),
    }
    wrapper = data_parallel(model)
    if wrapper is not None:
        found["kinds"].append("ddp")
        found["ddp"] = _ddp(wrapper)
    if fsdp := _fsdp(model):
        found["kinds"].append("fsdp2")
        found["fsdp"] = fsdp
    if place.parallel.get("tp_rank") is not None and _is_distributed(model):
        found["kinds"].append("tensor")
    elif not fsdp and _is_distributed(model):
        found["kinds"].append("dtensor")
    if place.parallel.get("pp_rank") is not None:
        found["kinds"].append("pipeline")
    return found


def shards_of_bad(model: nn.Module, names: list[str]) -> dict[str, Any]:
    """Where this rank's part of each bad parameter or gradient belongs, by sink name."""
    wanted = {name.partition(":")[2]: name for name in names[:_MOST]}
    found: dict[str, Any] = {}
    for name, parameter in named_parameters(model):
        if name not in wanted:
            continue
        try:
            shard = shard_of(parameter)
        except ValueError:
            continue
        if shard is not None:
            found[wanted[name]] = shard.as_tree()
    return found


def _is_distributed(model: nn.Module) -> bool:
    return any(hasattr(p, "placements") for _, p in named_parameters(model))


def _ddp(wrapper: Any) -> dict[str, Any]:
    return {
        "bucket_bytes_cap": int(getattr(wrapper, "bucket_bytes_cap", 0)) or None,
        "broadcast_buffers": bool(wrapper.broadcast_buffers),
        "find_unused_parameters": bool(wrapper.find_unused_parameters),
        "gradient_as_bucket_view": bool(wrapper.gradient_as_bucket_view),
        "static_graph": bool(getattr(wrapper, "static_graph", False)),
    }


def _fsdp(model: nn.Module) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, module in walk(model):
        state_of = getattr(module, "_get_fsdp_state", None)
        policy = None if state_of is None else getattr(state_of(), "_mp_policy", None)
        if policy is None:
            continue
        found[path] = {
            "param_dtype": _name(policy.param_dtype),
            "reduce_dtype": _name(policy.reduce_dtype),
            "output_dtype": _name(policy.output_dtype),
            "cast_forward_inputs": bool(policy.cast_forward_inputs),
        }
    return found


def _name(dtype: Any) -> str | None:
    return None if dtype is None else str(dtype).removeprefix("torch.")
