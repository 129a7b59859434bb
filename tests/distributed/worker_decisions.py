"""Scenarios that leave all ranks in step, one after the other in one launch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from tests.distributed import training as t
from workbench.errors import NonFiniteError
from workbench.evidence import open_bundle
from workbench.record import Alerts, Policy, Recorder
from workbench.record.requests import ask
from workbench.step import read_state

RANK, WORLD, FOLDER = t.begin()
BAD_RANK = WORLD - 1
SKIP = Policy(on_nonfinite="skip")


def weight(step: int, bad_at: int, value: float = t.BAD) -> float:
    return value if step == bad_at and RANK == BAD_RANK else 1.0


def adam(model: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 0.01)


def facts(recorder: Recorder, model: Any, results: list[Any]) -> dict[str, Any]:
    recorder.close()
    ledger = t.records(recorder)
    digest = "" if isinstance(model, FSDPModule) else t.digest(model)
    return {
        "run": recorder.run_id,
        "updated": [one.updated for one in results],
        "skipped_by": [one.skipped_by for one in results],
        "bundles": [Path(one).name for one in recorder.bundles],
        "digest": digest,
        "collectives": recorder.ranks.channel.collectives,
        "failures": recorder.failures,
        "decisions": [r["decision"] for r in ledger if r["decision"]],
        "reduce": [r["reduce"] for r in ledger if r["reduce"]],
        "stages": [r["first_bad_stage"] for r in ledger],
        "alerts": [[a["name"] for a in r["alerts"]] for r in ledger],
        "places": {(r["rank"], r["world"], r["dp_rank"]) for r in ledger},
        "scales": [r["loss_scale"] for r in ledger],
    }


def nan_loss() -> dict[str, Any]:
    model = t.ddp()
    recorder = Recorder(t.ClippedStep(), model, adam(model), directory=FOLDER / "nan", policy=SKIP)
    results = [recorder.train_step(t.batch(k, RANK, weight(k, 2))) for k in range(4)]
    found = facts(recorder, model, results)
    found["places"] = sorted(found["places"])
    if recorder.bundles:
        bundle = open_bundle(recorder.bundles[0])
        evidence = bundle.evidence()
        found["evidence"] = {k: evidence[k] for k in ("reduce", "decision", "stage", "stopped_at")}
        found["first_bad"] = bundle.first_bad.as_dict()
    return found


def nan_loss_raises() -> dict[str, Any]:
    model = t.ddp()
    recorder = Recorder(t.Step(), model, adam(model), directory=FOLDER / "raise", run_id="raise")
    raised = None
    for k in range(4):
        try:
            recorder.train_step(t.batch(k, RANK, weight(k, 1)))
        except NonFiniteError as error:
            raised = (k, str(error).splitlines()[0], error.bundle is not None)
            break
    return {"raised": raised, "digest": t.digest(model), "ended": recorder.step_index}


def low_level() -> dict[str, Any]:
    model = t.ddp()
    optimizer = adam(model)
    recorder = Recorder(None, model, optimizer, directory=FOLDER / "low", policy=SKIP)
    went, results = [], []
    for k in range(4):
        batch = t.batch(k, RANK, weight(k, 1))
        optimizer.zero_grad()
        with recorder.step(batch) as s:
            loss = (model(batch["x"]) * batch["w"]).mean()
            if s.loss(loss):
                loss.backward()
                if s.gradients(max_norm=1.0):
                    s.update()
                    went.append(k)
        results.append(s.result)
    return {**facts(recorder, model, results), "went": went, "places": []}


def all_leave() -> dict[str, Any]:
    """Every rank leaves the block of step 1 by itself: nothing to hang on."""
    model = t.ddp()
    optimizer = adam(model)
    recorder = Recorder(None, model, optimizer, directory=FOLDER / "leave", policy=SKIP)
    results = []
    for k in range(3):
        batch = t.batch(k, RANK)
        optimizer.zero_grad()
        with recorder.step(batch) as s:
            loss = (model(batch["x"]) * batch["w"]).mean()
            s.loss(loss)
            if k != 1:
                loss.backward()
                s.gradients()
                s.update()
        results.append(s.result)
    return {**facts(recorder, model, results), "places": []}


def scaler_skips() -> dict[str, Any]:
    """A finite loss with an infinite gradient on one rank, three steps in a row."""
    model = t.ddp()
    first = torch.optim.SGD(model.module[0].parameters(), 0.01)
    second = torch.optim.AdamW(model.module[2].parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    policy = Policy(on_nonfinite="skip", alerts=Alerts(consecutive_skips=3, skip_ratio=None))
    directory = FOLDER / "scaler"
    recorder = Recorder(t.Step(), model, [first, second], scaler, directory, policy=policy)
    results = []
    for k in range(6):
        bad = 1 <= k <= 3 and RANK == BAD_RANK
        hook = model.module[2].weight.register_hook(lambda g: g * float("inf")) if bad else None
        results.append(recorder.train_step(t.batch(k, RANK)))
        if hook is not None:
            hook.remove()
    return {**facts(recorder, model, results), "places": [], "scale": scaler.get_scale()}


def overflow_in_reduction() -> dict[str, Any]:
    """Finite gradients whose sum is not, under the user's hook: it sums before it divides."""
    model = t.ddp()
    seen: list[int] = []

    def add(state: list[int], bucket: Any) -> Any:
        state.append(bucket.index())
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda done: done.value()[0] / WORLD)

    add.__annotations__ = {}
    model.register_comm_hook(seen, add)
    recorder = Recorder(t.Step(), model, adam(model), directory=FOLDER / "sum", policy=SKIP)
    results = []
    for k in range(3):
        hook = model.module[0].weight.register_hook(lambda g: g * 0 + 3e38) if k == 1 else None
        results.append(recorder.train_step(t.batch(k, RANK)))
        if hook is not None:
            hook.remove()
    return {**facts(recorder, model, results), "places": [], "hook": len(seen)}


def fsdp() -> dict[str, Any]:
    """FSDP2 with mixed precision: a bad gradient of one rank, and a clean run beside a bare one."""
    found = {}
    for recorded in (False, True):
        model = t.make_model()
        precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        fully_shard(model[2], mp_policy=precision)
        fully_shard(model, mp_policy=precision)
        optimizer, step, recorder = adam(model), t.ClippedStep(), None
        if recorded:
            recorder = Recorder(step, model, optimizer, directory=FOLDER / "fsdp", policy=SKIP)
        for k in range(3):
            batch = t.batch(k, RANK)
            if recorder is not None:
                recorder.train_step(batch)
                continue
            optimizer.zero_grad(set_to_none=True)
            step.loss(step.forward(model, batch), batch).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        whole = [p.full_tensor().tolist() for p in model.parameters()]
        found["recorded" if recorded else "bare"] = whole
    results = []
    for k in range(3, 6):
        bad = k == 4 and RANK == BAD_RANK
        hook = model[2].register_full_backward_hook(_nan_input) if bad else None
        results.append(recorder.train_step(t.batch(k, RANK)))
        if hook is not None:
            hook.remove()
    same = found["recorded"] == found["bare"]
    return {**facts(recorder, model, results), "places": [], "same": same}


def _nan_input(module: Any, inputs: Any, outputs: Any) -> Any:
    return tuple(None if one is None else one * float("nan") for one in inputs)


def requests_and_alerts() -> dict[str, Any]:
    """A request to one rank, and a loss that jumps on one rank, make bundles on all."""
    model = t.ddp()
    alerts = Alerts(loss_factor=100.0)
    policy = Policy(on_nonfinite="skip", alerts=alerts)
    recorder = Recorder(t.Step(), model, adam(model), directory=FOLDER / "ask", policy=policy)
    results = []
    for k in range(9):
        if k == 2 and RANK == 0:
            ask(FOLDER / "ask", "look at this")
        dist.barrier()
        results.append(recorder.train_step(t.batch(k, RANK, weight(k, 7, 1e6))))
    kinds = [(open_bundle(b).kind, open_bundle(b).manifest.step) for b in recorder.bundles]
    reasons = [open_bundle(b).evidence()["reason"] for b in recorder.bundles]
    return {**facts(recorder, model, results), "places": [], "kinds": kinds, "reasons": reasons}


def buffers() -> dict[str, Any]:
    """The buffers of a bundle are those that DDP broadcast; a bad one on one rank is agreed on."""
    counting = t.Counting()
    model = t.ddp(nn.Sequential(*t.make_model(norm=True), counting))
    recorder = Recorder(t.Step(), model, adam(model), directory=FOLDER / "bn", policy=SKIP)
    results = [recorder.train_step(t.batch(k, RANK)) for k in range(2)]
    model.module[1].running_mean += 5.0 * RANK  # rank 0's is what forward uses
    before = recorder.ranks.channel.collectives
    results.append(recorder.train_step(t.batch(2, RANK), capture="look"))
    plain = recorder.ranks.channel.collectives - before
    state = read_state(open_bundle(recorder.bundles[0]))
    mean = state.model.tensors["1.running_mean"].tolist()
    counting.add = float("inf") if RANK == BAD_RANK else 0.0
    results.append(recorder.train_step(t.batch(3, RANK)))
    counting.add = 0.0
    results.append(recorder.train_step(t.batch(4, RANK)))
    return {**facts(recorder, model, results), "places": [], "mean": mean, "plain": plain}


def invariance() -> dict[str, Any]:
    """The same bits with and without the recorder, buckets of several sizes, and a user's hook."""
    found = {}
    for recorded in (False, True):
        model = t.ddp(bucket_cap_mb=0.0001)
        optimizer = adam(model)
        step, recorder = t.ClippedStep(), None
        if recorded:
            recorder = Recorder(step, model, optimizer, directory=FOLDER / "same", policy=SKIP)
        torch.manual_seed(5)
        for k in range(6):
            batch = t.batch(k, RANK)
            if recorder is not None:
                recorder.train_step(batch)
                continue
            optimizer.zero_grad(set_to_none=True)
            loss = step.loss(step.forward(model, batch), batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        found["recorded" if recorded else "bare"] = t.digest(model)
    return found


SCENARIOS = {
    one.__name__: one
    for one in (nan_loss, nan_loss_raises, low_level, all_leave, scaler_skips, buffers,
                overflow_in_reduction, requests_and_alerts,
        fsdp,
        invariance)
}  # fmt: skip

if __name__ == "__main__":
    chosen = sys.argv[2:] or list(SCENARIOS)
    said = {}
    for name in chosen:
        said[name] = SCENARIOS[name]()
        t.say(FOLDER, RANK, said)
    dist.destroy_process_group()
