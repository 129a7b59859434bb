"""Runs under torchrun: several trainings of two ranks, each with an incident in its own folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import workbench
from tests.distributed.incident_step import Huge, Step
from workbench.record import incident_ranks

STEPS = 4


def batch(step: int, rank: int, bad: bool) -> dict[str, torch.Tensor]:
    """A batch of four samples; the third is out of the logarithm's domain where it is bad."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.rand(4, 8, generator=generator) + 0.1
    if bad:
        x[2, 3] = -1.0
    return {"x": x}


def summed(folder: Path) -> Any:
    """One step of SGD whose gradients overflow in the reduction only."""
    step = Huge()
    model = ddp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def sum_of(state, bucket):  # DDP refuses annotations that are text
        work = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return work.then(lambda done: done.value()[0])

    model.register_comm_hook(None, sum_of)
    recorder = workbench.Recorder(
        step, model, optimizer, directory=folder, run_id="run",
        policy=workbench.Policy(on_nonfinite="skip"),
    )  # fmt: skip
    one = batch(0, 0, bad=False) | {"w": torch.full((4, 4), 7e37)}
    recorder.train_step(one)
    recorder.close()
    return recorder


def train(folder: Path, model: nn.Module, bad_ranks: tuple[int, ...], **more: Any) -> Any:
    """Train with the high-level form; the last step is bad on some ranks."""
    rank, nudge = dist.get_rank(), more.pop("nudge", None)
    same = more.pop("same_data", False)
    step = Step()
    recorder = workbench.Recorder(
        step, model, step.build_optimizer(model), directory=folder, run_id="run",
        policy=workbench.Policy(on_nonfinite="skip"), **more,
    )  # fmt: skip
    for number in range(STEPS):
        if nudge is not None and number == 2 and rank == 1:
            with torch.no_grad():
                nudge.add_(0.5)
        bad = number == STEPS - 1 and rank in bad_ranks
        recorder.train_step(batch(number, 0 if same else rank, bad))
    recorder.close()
    return recorder


def ddp() -> nn.Module:
    return nn.parallel.DistributedDataParallel(Step().build_model())


def fsdp() -> nn.Module:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = Step().build_model()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    fully_shard(model.a, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model


def tensor_parallel() -> nn.Module:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    plan = {"a": ColwiseParallel(), "b": RowwiseParallel()}
    return parallelize_module(Step().build_model(), mesh, plan)


def pipeline(folder: Path) -> Any:
    """Two stages of one layer, two micro-batches, the schedule of torch."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("pp",))
    whole = Step().build_model()
    part = whole.a if rank == 0 else whole.b
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))

    def loss_of(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (outputs.square().mean(1) * target.log()).mean()

    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-2)
    recorder = workbench.Recorder(
        None, part, optimizer, directory=folder, run_id="run", mesh=mesh,
        policy=workbench.Policy(on_nonfinite="skip"),
    )  # fmt: skip
    for number in range(2):
        one = batch(number, 0, bad=number == 1)["x"]
        losses: list[torch.Tensor] = []
        given = list(one.chunk(2)) if rank == 0 else list(one.amin(1).chunk(2))
        optimizer.zero_grad()
        with recorder.step(micro_batches=given) as s:
            if rank == 0:
                schedule.step(one)
            else:
                schedule.step(target=one.amin(1), losses=losses)
                s.loss(torch.stack(losses).mean().detach())
            if s.gradients():
                s.update()
    recorder.close()
    return recorder


def checkpoint(folder: Path) -> dict[str, Any]:
    """Save a sharded checkpoint of two ranks; both say the bits of its whole tensors."""
    from torch.distributed.checkpoint import save
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    model = fsdp()
    state = get_model_state_dict(model)
    save({"model": state}, checkpoint_id=str(folder / "step-1"))
    return {name: float(value.full_tensor().sum()) for name, value in state.items()}


def main() -> None:
    """Run all of them, one after the other."""
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    said: dict[str, Any] = {}
    said["ddp"] = train(folder / "ddp", ddp(), (1,)).failures
    parted = ddp()
    said["desync"] = train(folder / "desync", parted, (0,), nudge=parted.module.b.bias).failures
    said["summed"] = summed(folder / "summed").failures
    incident_ranks.LIGHT_STATE = 0
    said["lent"] = train(folder / "lent", ddp(), (0,)).failures
    said["fsdp"] = train(folder / "fsdp", fsdp(), (1,)).failures
    model = tensor_parallel()
    said["tensor"] = train(folder / "tensor", model, (0, 1), same_data=True).failures
    said["pipeline"] = pipeline(folder / "pipeline").failures
    said["checkpoint"] = checkpoint(folder / "checkpoints")
    (folder / f"rank{rank}.json").write_text(json.dumps(said))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
