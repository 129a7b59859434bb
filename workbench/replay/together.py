"""All ranks of an incident replayed together: each its own bundle, the reduction computed again.

Started by ``torchrun``. Every rank reads its own bundle, wraps the model as the run did and runs
the step to its gradients, whatever is bad on the way: a rank that stopped at its loss would leave
the others waiting. A rank that cannot begin is told to all before any collective, so none waits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import distributed as dist
from torch import nn

from workbench.errors import CannotRunError, WorkbenchError
from workbench.evidence.incidents import siblings
from workbench.evidence.reader import open_bundle
from workbench.evidence.wording import joined, number
from workbench.numerics import jsonio
from workbench.replay.replay import Replay
from workbench.replay.source import Source
from workbench.replay.verdict import grade
from workbench.step.names import walk

if TYPE_CHECKING:
    from workbench.evidence.reader import Bundle
    from workbench.replay.result import RunResult

SCHEMA = "workbench.replay-ranks/1"
_BYTES = 1 << 16
_DTYPES = ("float16", "bfloat16", "float32", "float64")


def under_torchrun() -> bool:
    """Whether this process is one of several that ``torchrun`` started."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def replay_ranks(path: str | Path, step: Any = None, trust: str | None = None) -> dict[str, Any]:
    """Replay this rank's part of an incident together with the other ranks.

    Args:
        path: The bundle of any rank; this rank's own is found beside it.
        step: The training step, or a reference to it.
        trust: What code named by the bundle may run.

    Returns:
        ``workbench.replay-ranks/1``: a row per rank with its verdict, the same on all ranks.

    Raises:
        CannotRunError: A rank has no bundle, or cannot begin; raised on all ranks alike.
    """
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    backend = "nccl" if torch.cuda.is_available() and torch.cuda.device_count() >= world else "gloo"
    dist.init_process_group(backend)
    try:
        source, why = None, ""
        try:
            source = _own_source(Path(path), rank, world, step, trust)
        except WorkbenchError as error:
            why = str(error)
        failed = [row for row in _gather({"rank": rank, "why": why}) if row["why"]]
        if failed or source is None:
            raise CannotRunError(_refusal(failed))
        return _run(source, rank, world)
    finally:
        dist.destroy_process_group()


def _refusal(failed: Sequence[Mapping[str, Any]]) -> str:
    names = joined([number(int(row["rank"])) for row in failed], 8)
    return (
        f"Rank {names} cannot replay its part of the incident, so no rank was run, since they "
        f"would wait for it. Rank {failed[0]['rank']}: {failed[0]['why']}"
    )


def _own_source(path: Path, rank: int, world: int, step: Any, trust: str | None) -> Source:
    bundle = _own_bundle(open_bundle(path), rank, world)
    source = Source.from_bundle(bundle, step, trust)
    source.require("backward")
    kinds = source.parallel.get("kinds") or []
    other = [str(kind) for kind in kinds if kind not in ("ddp", "fsdp2")]
    if other:
        raise CannotRunError(
            f"The step of {str(bundle.path)!r} was spread by {joined(other)}, which is set up by "
            "the training script and not by the bundle, so it is not built again here. What was "
            "recorded can be read with: workbench inspect"
        )
    source.wrap = _wrapper(source)
    return source


def _own_bundle(named: Bundle, rank: int, world: int) -> Bundle:
    there, recorded = siblings(named), named.manifest.world
    if recorded != world:
        raise CannotRunError(
            f"The bundle {str(named.path)!r} is of a run of {number(recorded)} ranks, and torchrun "
            f"started {number(world)}: its reductions would be others. Start it with "
            f"--nproc-per-node {recorded}, or replay one rank without torchrun."
        )
    if rank not in there:
        raise CannotRunError(
            f"No bundle of rank {number(rank)} lies beside {str(named.path)!r}, so its part of the "
            "step cannot be computed. Put the bundles of all ranks into one folder, or replay one "
            "rank without torchrun."
        )
    return there[rank]


# -- wrapping as the run did ----------------------------------------------------------------------


def _wrapper(source: Source) -> Callable[[nn.Module], nn.Module]:
    said = source.parallel
    ddp, fsdp = said.get("ddp"), said.get("fsdp")
    if isinstance(fsdp, Mapping) and fsdp:
        return lambda model: _fully_sharded(model, fsdp)
    return lambda model: _data_parallel(model, ddp if isinstance(ddp, Mapping) else {})


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


def _fully_sharded(model: nn.Module, said: Mapping[str, Any]) -> nn.Module:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    modules = dict(walk(model))
    for path in sorted(map(str, said), key=lambda p: -p.count(".") - bool(p)):  # inner ones first
        one = said[path]
        if path not in modules or not isinstance(one, Mapping):
            continue
        policy = MixedPrecisionPolicy(
            param_dtype=_dtype(one.get("param_dtype")),
            reduce_dtype=_dtype(one.get("reduce_dtype")),
            output_dtype=_dtype(one.get("output_dtype")),
            cast_forward_inputs=bool(one.get("cast_forward_inputs", True)),
        )
        fully_shard(modules[path], mp_policy=policy)
    return model


def _dtype(name: Any) -> torch.dtype | None:
    return cast("torch.dtype", getattr(torch, name)) if name in _DTYPES else None


# -- running --------------------------------------------------------------------------------------


def _run(source: Source, rank: int, world: int) -> dict[str, Any]:
    replay = Replay.from_source(source)
    result = _to_the_gradients(replay)
    session = replay.session
    assert session is not None  # noqa: S101 - it was just run
    graded = grade(source, result, session)
    bad = source.first_bad
    own = {
        "rank": rank,
        "verdict": graded.verdict,
        "bundle": Path(source.path).name,
        "recorded": None if bad is None else {"stage": bad.stage, "tensor": bad.tensor},
        "recorded_rank": None if bad is None else bad.rank,
        "first_bad": result.first_bad,
        "loss": result.loss,
        "gradients_compared": bool(source.digests.get("gradients")),
        "distance": graded.distance,
        "unequal": graded.unequal[:6],
    }
    rows = _gather(own)
    return {
        "schema": SCHEMA,
        "world": world,
        "backend": dist.get_backend(),
        "until": "reduce",
        "ranks": rows,
        "verdicts": {str(row["rank"]): row["verdict"] for row in rows},
        "said": ["The reduction of gradients was computed again by these ranks."],
    }


def _to_the_gradients(replay: Replay) -> RunResult:
    """Run to the gate that looks at the reduced gradients, on all ranks alike."""
    scaled = replay.source.state.scaler is not None
    return replay.run(until="unscale" if scaled else "reduce", conditions=replay.nearest,
                      keep_gradients=True)  # fmt: skip


def _gather(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What every rank says, by rank: strict JSON in tensors, no pickle."""
    text = jsonio.dumps(row).encode()
    if len(text) > _BYTES:
        text = jsonio.dumps({"rank": row.get("rank"), "why": "its row is too long"}).encode()
    device = torch.device("cuda", torch.cuda.current_device()) if (
        dist.get_backend() == "nccl"
    ) else torch.device("cpu")  # fmt: skip
    mine = torch.tensor(list(text.ljust(_BYTES)), dtype=torch.uint8, device=device)
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, mine)
    return [dict(jsonio.loads(bytes(one.tolist()).decode().rstrip())) for one in rows]
