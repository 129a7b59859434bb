"""A quiet step of the user's own loop leaves what any other step of it would leave."""

import numpy as np
import pytest
import recorded_steps as steps
import torch
from bundle_contents import contents, records
from test_quiet import Clipping, Counting, Jumping, Plain, Wide

from workbench import Alerts, Policy, Recorder
from workbench.record.quiet import QuietSteps
from workbench.step.digests import state_fingerprint
from workbench.step.runner import autocast_of, split_loss
from workbench.step.state import Prepared


class Two(steps.Cnn):
    """Two optimizers for one model, updated together."""

    def build_optimizer(self, model):
        first, last = list(model[0].parameters()), list(model[5].parameters())
        return [torch.optim.SGD(first, 0.1, momentum=0.9), torch.optim.Adam(last, 1e-2)]


class TwoHalf(steps.Half):
    """Two optimizers with one scaler."""

    def build_optimizer(self, model):
        return [
            torch.optim.AdamW(model[0].parameters(), 1e-2),
            torch.optim.Adam(model[3].parameters(), 1e-2, fused=True),
        ]


class Loop:
    """One run of a loop that the user keeps.

    Args:
        kind: The training step that says what is computed.
        micro: Micro-batches a step.
        scheduled: Whether a scheduler is stepped within the block.
        bad_at: The step at which something happens.
        what: What happens: a bad ``batch``, ``scaled`` gradients that overflow, a ``rate`` that is
            Inf, the loop's own exception after the ``update``, a block ``left`` without one.
    """

    def __init__(self, kind, micro=1, scheduled=False, bad_at=None, what="batch"):
        self.step, self.micro, self.scheduled = kind(), micro, scheduled
        self.bad_at, self.what = bad_at, what

    def start(self, directory, policy):
        np.random.seed(7)
        self.model, self.optimizers, self.scaler = steps.build(self.step, seed=7)
        self.schedulers = [
            torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.9**k)
            for optimizer in self.optimizers
            if self.scheduled
        ]
        self.recorder = Recorder(
            self.step, self.model, self.optimizers, self.scaler, directory, "r", policy,
            {"shard_id": 4}, self.schedulers,
        )  # fmt: skip

    def batch(self, k, i):
        bad = k == self.bad_at and i == self.micro - 1
        found = self.step.batch(k * self.micro + i, bad=bad and self.what == "batch")
        if bad and self.what == "scaled":
            found["s"] = 1e30
        return found

    def once(self, k):
        happens = self.what if k == self.bad_at else None
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
            if happens == "rate":
                optimizer.param_groups[0]["lr"] = float("inf")
        first = self.batch(k, 0)
        with self.recorder.step(first, sample_ids=[k]) as s:
            for i in range(self.micro):
                batch = first if i == 0 else self.batch(k, i)
                if self.micro > 1:
                    s.micro_batch(i, batch)
                self._backward(s, batch)
            if happens == "left":
                return s
            if s.gradients(max_norm=getattr(self.step, "max_grad_norm", None)):
                s.update()
            if happens == "update":
                raise LookupError(k)
            for scheduler in self.schedulers:
                scheduler.step()
            s.logging(rate=self.optimizers[0].param_groups[0]["lr"])
        return s

    def _backward(self, s, batch):
        with autocast_of(self.step, self.model):
            result = self.step.loss(self.step.forward(self.model, batch), batch)
        loss, parts = split_loss(result)
        s.loss(loss / self.micro, parts)
        scaled = loss / self.micro
        (scaled if self.scaler is None else self.scaler.scale(scaled)).backward()


def run(loop, directory, quiet, monkeypatch, policy):
    begin, end, ended = QuietSteps.begin, QuietSteps.end, []

    def noted(self, begun):
        ended.append(begun.index)
        return end(self, begun)

    monkeypatch.setattr(QuietSteps, "end", noted)
    monkeypatch.setattr(QuietSteps, "begin", begin if quiet else lambda *args: None)
    loop.start(directory, policy)
    said, results = None, []
    for k in range(13):
        if not quiet:
            loop.recorder.prepared = Prepared()  # nothing is known from the step before
        try:
            result = loop.once(k).result
        except (FloatingPointError, LookupError) as error:
            said = type(error)
            break
        results.append((result.metrics(), result.step, result.updated, result.skipped_by))
    monkeypatch.undo()
    loop.recorder.close()
    assert loop.recorder.failures == []
    state = state_fingerprint(loop.model, loop.optimizers)
    return said, repr(results), records(directory / "r.ledger.jsonl"), state, ended


RUNS = {
    "plain": (lambda: Loop(Plain), range(2, 13)),
    "components": (lambda: Loop(Counting), range(2, 13)),
    "clips": (lambda: Loop(Clipping), range(2, 13)),
    "wide": (lambda: Loop(Wide), range(2, 13)),
    "half": (lambda: Loop(steps.Half), range(2, 13)),
    "two": (lambda: Loop(Two, scheduled=True), range(2, 13)),
    "two half": (lambda: Loop(TwoHalf, micro=2), range(2, 13)),
    "micro": (lambda: Loop(Counting, micro=3, scheduled=True), range(2, 13)),
    "bad micro": (lambda: Loop(Counting, micro=2, bad_at=7), range(2, 7)),
    "bad batch": (lambda: Loop(Plain, bad_at=7), range(2, 7)),
    "bad gradient": (lambda: Loop(steps.BadGradient, scheduled=True, bad_at=7), range(2, 7)),
    "bad half": (lambda: Loop(TwoHalf, bad_at=7, scheduled=True), range(2, 7)),
    "overflow": (lambda: Loop(steps.Half, bad_at=7, what="scaled"), range(2, 7)),
    "bad rate": (lambda: Loop(Clipping, bad_at=7, what="rate"), range(2, 7)),
    "raises": (lambda: Loop(Plain, bad_at=7, what="update"), range(2, 7)),
    "jump": (lambda: Loop(Jumping, bad_at=7), range(2, 7)),
    "left": (lambda: Loop(steps.Half, bad_at=7, what="left"), range(2, 7)),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_quiet_block_leaves_what_any_other_leaves(name, tmp_path, monkeypatch):
    make, expected = RUNS[name]
    found, bundles = [], []
    for quiet in (True, False):
        loop = make()
        alerts = Alerts(grad_norm_factor=20.0) if name == "jump" else Alerts()
        every = 4 if name == "bad batch" else 0
        policy = Policy(deep_scan_every=10, recovery_every=every, alerts=alerts)
        found.append(run(loop, tmp_path / str(quiet), quiet, monkeypatch, policy))
        bundles.append([contents(bundle) for bundle in loop.recorder.bundles])
    assert found[0][:-1] == found[1][:-1]
    assert bundles[0] == bundles[1]
    ended = [k for k in found[0][-1] if k in expected]
    loud = {10, *((4,) if name == "bad batch" else ())}
    assert ended == [k for k in expected if k not in loud]
    assert found[1][-1] == []
    trips = name.startswith("bad") or name == "raises"
    assert len(bundles[0]) == trips + (name == "jump") and (found[0][0] is not None) == trips
