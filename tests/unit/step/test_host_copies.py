"""States of steps copied into memory that is used again: which bits, when, and how much of it."""

import threading

import pytest
import torch
from torch import nn

from workbench import Policy, Recorder, TrainingStep, open_bundle
from workbench.record.recovery import RecoveryRing
from workbench.step import read_state
from workbench.step.host_copies import HostPool
from workbench.step.state import StepSnapshot
from workbench.step.transfer import CudaTransfer, HostTransfer


class Odd(nn.Module):
    """Tied and transposed weights, parameters that are views of one storage, half floats, NaN."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(600, 600)
        self.b = nn.Linear(600, 600)
        self.b.weight = self.a.weight
        flat = torch.randn(2 * 300 * 600)
        self.left = nn.Parameter(flat[: 300 * 600].view(300, 600))
        self.right = nn.Parameter(flat[300 * 600 :].view(600, 300).t())
        self.coarse = nn.Parameter(torch.randn(500, dtype=torch.bfloat16))
        self.bad = nn.Parameter(torch.tensor([float("nan"), -0.0, float("inf")]))
        self.frozen = nn.Parameter(torch.randn(700, 700), requires_grad=False)
        self.norm = nn.BatchNorm1d(600)

    def forward(self, x):
        x = self.norm(self.b(self.a(x)))
        return x @ self.left.t() @ self.right + self.coarse.float().sum()


def made(updates=2):
    """A model and an optimizer with state, and what makes one more update."""
    torch.manual_seed(0)
    model = Odd()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)

    def update():
        optimizer.zero_grad()
        model(torch.randn(4, 600)).square().mean().backward()
        optimizer.step()

    for _ in range(updates):
        update()
    return model, optimizer, update


def bits(state):
    """Bytes of everything in a state that an update may write, with strides and sharing."""
    found = {f"model/{name}": t for name, t in state.model.tensors.items()}
    for name, entries in state.optimizers[0].state.items():
        found |= {f"{name}/{k}": t for k, t in entries.items()}
    order = {}
    for name, t in found.items():
        order.setdefault(t.untyped_storage()._cdata, []).append(name)
    shared = sorted(names for names in order.values() if len(names) > 1)
    return shared, {
        name: (t.stride(), t.dtype, t.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        for name, t in found.items()
    }


def test_the_copy_is_the_state_before_the_update_and_parameters_stay_where_they_are():
    model, optimizer, update = made()
    plain = bits(StepSnapshot(model, [optimizer]).freeze())
    places = [p.data_ptr() for p in model.parameters()]
    ring = RecoveryRing(1, 2**30)
    snapshot = StepSnapshot(model, [optimizer])
    ring.begin(snapshot)
    assert snapshot.copies
    update()
    assert bits(snapshot.freeze()) == plain
    assert [p.data_ptr() for p in model.parameters()] == places
    info = snapshot.freeze().model.info
    assert (info["a.weight"].how, info["frozen"].how, info["norm.weight"].how) == (
        "copy", "cow", "copy",
    )  # fmt: skip


def test_the_same_memory_again_but_never_while_somebody_reads_it():
    model, optimizer, update = made()
    state = StepSnapshot(model, [optimizer])
    pool = HostPool(2**30, lambda: 0, lambda: False, pytest.fail)
    state.move_state(pool.copy)
    one = pool.bytes
    assert one > 4 * 2**20
    read, before = state.freeze(), bits(state.freeze())
    del state  # only what was frozen is held on to
    for _ in range(4):
        update()
        again = StepSnapshot(model, [optimizer])
        again.move_state(pool.copy)
        assert again.copies
        del again
    assert pool.bytes == 2 * one
    assert bits(read) == before
    del read
    assert pool.drop_unused()
    assert pool.drop_unused()
    assert (pool.bytes, pool.drop_unused()) == (0, False)


def taken(ring):
    """Counted anew: the ring itself keeps count, since it may hold thousands of steps."""
    outside = sum(kept.size - kept.pooled for kept in ring._steps)
    assert ring._outside == outside
    assert ring._pool.bytes == sum(slot.size for slot in ring._pool._slots)
    return ring._pool.bytes + outside


def test_the_ring_never_takes_more_than_it_may():
    model, optimizer, update = made()
    size = sum(p.nbytes for p in model.parameters() if p.requires_grad)  # tied: once
    ring = RecoveryRing(2, 9 * size)
    held = None
    for step in range(14):
        snapshot = StepSnapshot(model, [optimizer], step_index=step)
        if ring.wants_state(step):
            ring.begin(snapshot)
        assert taken(ring) <= 9 * size
        update()
        ring.add(step, snapshot, None)
        assert taken(ring) <= 9 * size
        if step == 6:  # a bundle is being written
            held = [kept.snapshot.freeze() for kept in ring.steps_before(6)]
    assert held
    kept = ring.steps_before(99)
    assert [one.step for one in kept if one.is_recovery_point]
    assert kept[0].is_recovery_point
    none = RecoveryRing(1, size)
    snapshot = StepSnapshot(model, [optimizer])
    none.begin(snapshot)
    assert (snapshot.copies, taken(none)) == ([], 0)


class Late(HostTransfer):
    """Copies on another thread once it is let, as slow as a test wants: really beside the loop."""

    def __init__(self, half=False, room=True):
        self.go, self._half, self._room = threading.Event(), half, room
        self.waited = 0

    def copy(self, pairs):
        def work():
            self.go.wait()
            HostTransfer.copy(self, pairs)

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()
        return self

    def is_made(self):
        return not self._thread.is_alive()

    def is_half_made(self):
        return self._half or self.is_made()

    def wait(self):
        self.go.set()
        self._thread.join()

    def hold_back(self):
        self.waited += 1
        self.wait()

    def has_room(self):
        return self._room


class Wide(TrainingStep):
    def build_model(self):
        return nn.Sequential(nn.Linear(600, 600), nn.Linear(600, 600))

    def build_optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), 1e-3)

    def forward(self, model, batch):
        return model(batch)

    def loss(self, outputs, batch):
        return outputs.square().mean()


@pytest.mark.parametrize("case", ["slow", "half", "no room", "asked for"])
def test_a_copy_that_is_late_is_of_before_the_update_or_given_up(tmp_path, monkeypatch, case):
    late = Late(half=case == "half", room=case == "slow")
    monkeypatch.setattr("workbench.step.host_copies.transfer_for", lambda *_: late)
    torch.manual_seed(0)
    step = Wide()
    model = step.build_model()
    optimizer = step.build_optimizer(model)
    policy = Policy(recovery_every=3)
    recorder = Recorder(step, model, optimizer, None, tmp_path, "r", policy)
    x = torch.randn(4, 600)
    true = {}
    for k in range(3):
        true[k] = [p.detach().clone() for p in model.parameters()]
        reason = "x" if k == 2 or (case == "asked for" and k == 0) else None
        places = [p.data_ptr() for p in model.parameters()]
        path = recorder.train_step(x, capture=reason).incident
        if k == 0:
            assert late.waited == (case == "half")
            stayed = [p.data_ptr() for p in model.parameters()] == places
            assert stayed == (case == "half")  # else the thread still holds what it will read
    assert recorder.failures == []
    bundle = open_bundle(path)
    if case == "no room":
        assert bundle.manifest.completeness["trajectory"].startswith("missing earlier steps")
        late.wait()
    else:
        state = read_state(bundle, "trajectory/step00000000/")
        assert all(map(torch.equal, state.model.tensors.values(), true[0]))
        assert bundle.completeness["trajectory"] == "complete"


def test_memory_that_cannot_be_pinned_is_plain_and_told_once():
    if torch.cuda.is_available():
        pytest.skip("memory can be pinned here")
    told = []
    transfer = CudaTransfer(told.append)
    assert transfer.bytes_of(1000) == 1024
    assert [transfer.allocate(n).numel() for n in (1000, 3000)] == [1000, 3000]
    assert len(told) == 1
    assert "could not be pinned" in told[0]
    assert transfer.bytes_of(1000) == 1000
    pool = HostPool(2**30, lambda: 0, lambda: False, told.append)
    assert pool.copy([torch.empty(9, device="meta")]) is None


def test_what_is_private_in_torch_does_what_is_needed():
    t = torch.randn(4, 4)
    clone = torch._lazy_clone(t)
    raw = torch.empty(0, dtype=torch.uint8).set_(clone.untyped_storage())
    torch.empty(64, dtype=torch.uint8).copy_(raw)
    assert torch._C._data_address(clone[2:]) == torch._C._data_address(t)
    assert torch._C._is_cow_tensor(clone)
    assert torch._C._is_cow_tensor(t)
