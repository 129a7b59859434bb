"""Recovery points under training: what is recovered, against what training had."""

from pathlib import Path
from typing import Any

from torch import nn

from tests.gpu.training import Mixed, bare_step, build, calm, parameters, recorder_for, same_bits
from workbench.evidence import open_bundle
from workbench.record.recovery import RecoveryRing
from workbench.step import read_state
from workbench.step.state import StepSnapshot


class Large(Mixed):
    """Enough parameters for copies to be worth it on a CPU too."""

    def build_model(self):
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 2048), nn.ReLU(), nn.Linear(2048, 4))


class LargeOnCpu(Large):
    device = "cpu"


def recovered(step: Any, device: str, directory: Path) -> dict[str, Any]:
    """Train with a recovery point every 2 steps, capture the sixth step, and read them back.

    Returns:
        Whether each point has the bits that a bare loop had then (``same``), whether parameters
        stayed at their addresses in the steps that took one (``stayed``), how many points there
        are, and whether their memory is ``pinned``.
    """
    bare = build(step, device)
    true = {}
    for number, one in enumerate(calm(device, 6)):
        state = bare.optimizer.state
        true[number] = (
            parameters(bare.model),
            [entries["exp_avg_sq"].detach().cpu().clone() for entries in state.values()],
        )
        bare_step(bare, one)
    built = build(step, device)
    recorder = recorder_for(built, directory, recovery_every=2)
    stayed = True
    for number, one in enumerate(calm(device, 6)):
        before = [p.data_ptr() for p in built.model.parameters()]
        path = recorder.train_step(one, capture="check" if number == 5 else None).incident
        if number in (2, 4):
            stayed &= before == [p.data_ptr() for p in built.model.parameters()]
    pinned = [slot.memory.is_pinned() for slot in recorder.ring._pool._slots]
    recorder.close()
    assert recorder.failures == []
    assert path is not None
    bundle = open_bundle(path)
    points = [one for one in bundle.json("trajectory/index.json")["steps"] if one["recovery_point"]]
    same = True
    for point in points:
        kept = read_state(bundle, point["prefix"])
        model, moments = true[point["step"]]
        assert kept.model is not None
        names = [name for name, _ in built.model.named_parameters()]
        names += [name for name, _ in built.model.named_buffers()]
        found = [entries["exp_avg_sq"] for entries in kept.optimizers[0].state.values()]
        same &= same_bits([kept.model.tensors[name] for name in names], model)
        same &= same_bits(found, moments)
    return {"same": same, "stayed": stayed, "points": len(points), "pinned": pinned}


def begun(step: Any, device: str) -> tuple[RecoveryRing, Any]:
    """A ring, and what begins one recovery point of a model that has made updates."""
    built = build(step, device)
    for one in calm(device, 2):
        bare_step(built, one)
    ring = RecoveryRing(1, 2**30)

    def begin() -> StepSnapshot:
        snapshot = StepSnapshot(built.model, [built.optimizer])
        ring.begin(snapshot)
        return snapshot

    return ring, begin
