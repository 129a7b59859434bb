"""A step in which nothing is wrong, run quietly, leaves what any other step would leave."""

import json
import os
import random
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
import recorded_steps as steps
import torch
from torch import nn

from workbench import Alerts, Policy, Recorder, TrainingStep
from workbench.numerics import jsonio
from workbench.record import group
from workbench.record.quiet import QuietSteps
from workbench.replay import Replay
from workbench.step.digests import state_fingerprint
from workbench.step.state import Prepared

TIMES = {"time", "run_id"}


class Counting(TrainingStep):
    """What changes in forward: attributes, buffers, lists; outputs in a tuple; a falling rate."""

    def build_model(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)
                self.register_buffer("seen", torch.zeros(1))
                self.calls, self.history, self.last = 0, [], None

            def forward(self, x):
                self.calls += 1
                self.history.append(self.calls)
                self.seen = self.seen + 1
                self.last = self.norm(self.linear(x))
                return self.last, self.last.mean()

        return Net()

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), 0.05)

    def forward(self, model, batch):
        return model(batch["x"] + random.random() * np.random.rand())

    def loss(self, outputs, batch):
        return {"square": outputs[0].square().mean(), "mean": outputs[1] * batch["w"]}

    def update(self, model, optimizer, scaler):
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.9

    def batch(self, k, bad=False):
        g = torch.Generator().manual_seed(k)
        return {
            "x": torch.randn(5, 4, generator=g),
            "w": torch.tensor(float("nan") if bad else 1.0),
            "unused": torch.tensor([1.0, float("inf")]) if k == 3 else torch.ones(2),
            "shard_id": torch.tensor(k),
        }


class Clipping(steps.Cnn):
    """Clips by default."""

    max_grad_norm = 0.1


class Plain(steps.Cnn):
    """One loss, no components."""

    def loss(self, outputs, batch):
        return outputs.pow(2).mean() * batch["w"].mean().log().exp()


class Wide(Plain):
    """More parameters than are read at every step, and a batch that is looked at at once."""

    def build_model(self):
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 1024), nn.Dropout(0.1), nn.Linear(1024, 2))

    def batch(self, k, bad=False):
        found = super().batch(k, bad)
        return {"x": found["x"].repeat(100, 1, 1, 1), "w": found["w"]}


KINDS = {**steps.ALL, **{k.__name__: k for k in (Counting, Clipping, Plain, Wide)}}
LOUD = {"Gan"}
"""Those with several phases: none of their steps is quiet."""


def run(kind, directory, quiet, monkeypatch, bad_at=None, policy=None):
    ran = []
    step = kind()
    np.random.seed(7)
    model, optimizers, scaler = steps.build(step, seed=7)
    recorder = Recorder(step, model, optimizers, scaler, directory, "r", policy, {"shard_id": 4})
    original = QuietSteps.step

    def watched(self, batch, sample_ids):
        result = original(self, batch, sample_ids) if quiet else None
        ran.append(result is not None)
        return result

    monkeypatch.setattr(QuietSteps, "step", watched)
    raised, results = None, []
    for k in range(26):
        if not quiet:
            recorder.prepared = Prepared()  # nothing is known from the step before
        try:
            result = recorder.train_step(step.batch(k, bad=k == bad_at), sample_ids=[k])
        except FloatingPointError as error:
            raised = str(error)
            break
        results.append((result.metrics(), result.step, result.updated, result.skipped_by))
    monkeypatch.setattr(QuietSteps, "step", original)
    recorder.close()
    assert recorder.failures == []
    parts = [json.loads(line) for line in (directory / "r.ledger.jsonl").read_bytes().splitlines()]
    return recorder, parts, results, raised, ran, state_fingerprint(model, optimizers)


def without_times(records):
    return [{k: v for k, v in record.items() if k not in TIMES} for record in records]


def without_place(text, folder):
    """A message without where its bundle lies and how large it is: its ledger holds times."""
    return re.sub(r"\([\d.,]+ \w?B\)", "", text.replace(str(folder), ""))


@pytest.mark.parametrize("name", KINDS)
def test_the_ledger_of_quiet_steps_is_the_ledger_of_any_others(name, tmp_path, monkeypatch):
    found = []
    for quiet in (True, False):
        folder = tmp_path / str(quiet)
        found.append(run(KINDS[name], folder, quiet, monkeypatch, policy=Policy(deep_scan_every=9)))
    (_, records, results, _, ran, state), (_, others, expected, _, _, same) = found
    assert without_times(records) == without_times(others)
    assert repr(results) == repr(expected)
    assert state == same
    assert any(ran) != (name in LOUD)


@pytest.mark.parametrize("every", [0, 3])
@pytest.mark.parametrize("name", ["Cnn", "Counting", "Clipping", "Wide"])
def test_a_quiet_step_that_trips_leaves_the_bundle_of_any_other(name, every, tmp_path, monkeypatch):
    found = []
    for quiet in (True, False):
        policy = Policy(recovery_every=every)
        found.append(run(KINDS[name], tmp_path / str(quiet), quiet, monkeypatch, 7, policy))
    (one, records, _, said, ran, _), (two, others, _, expected, _, _) = found
    assert ran[2:7] == [every == 0 or k % every != 0 for k in range(2, 7)]
    assert without_times(records) == without_times(others)
    assert without_place(said, tmp_path / "True") == without_place(expected, tmp_path / "False")
    more = ["trajectory/index.json"] if every else []
    assert contents_of(one.bundles[0], *more) == contents_of(two.bundles[0], *more)
    verdict = Replay(one.bundles[0], step=KINDS[name]()).verdict()
    assert verdict.verdict == "bitwise"


def contents_of(bundle, *more):
    """What a bundle holds, without its times."""
    content = {p.relative_to(bundle): p.read_bytes() for p in bundle.rglob("*") if p.is_file()}
    found = {k: v for k, v in content.items() if k.suffix == ".safetensors"}
    parts = ["state/model.json", "state/optimizer.json", "batch.json", "state/rng.json"]
    for part in ["evidence.json", *parts, *more]:
        found[part] = jsonio.loads((bundle / part).read_bytes())
    return found


class Jumping(Clipping):
    """A batch that is finite and much too large."""

    def batch(self, k, bad=False):
        found = super().batch(k)
        return {**found, "x": found["x"] * (1e3 if bad else 1)}

    def loss(self, outputs, batch):
        return outputs.pow(2).mean() * batch["x"].abs().mean()


@pytest.mark.parametrize("every", [0, 3])
@pytest.mark.parametrize("what", ["loss_factor", "grad_norm_factor"])
def test_a_jump_in_a_quiet_run_leaves_the_alert_of_any_other(what, every, tmp_path, monkeypatch):
    found = []
    for quiet in (True, False):
        policy = Policy(recovery_every=every, alerts=Alerts(**{what: 20.0}))
        found.append(run(Jumping, tmp_path / str(quiet), quiet, monkeypatch, 14, policy))
    (one, records, results, _, ran, state), (two, others, expected, _, _, same) = found
    # the step that jumps wakes up in its middle; the one behind it tells that the alert is over
    assert ran[2:15] == [every == 0 or k % every != 0 for k in range(2, 15)]
    assert ran[15:18] == [False, every == 0, True]
    assert [record["step"] for record in records if record["alerts"]] == [14]
    assert without_times(records) == without_times(others)
    assert repr(results) == repr(expected)
    assert state == same
    more = ["trajectory/index.json"] if every else ["calm/index.json"]
    assert contents_of(one.bundles[0], *more) == contents_of(two.bundles[0], *more)
    assert every or jsonio.loads((one.bundles[0] / more[0]).read_bytes())["step"] == 13


class Raising(Plain):
    """The user's own exception, at one of the stages."""

    at = "forward"

    def stumble(self, where):
        if self.at == where and self.step_index == 4:
            raise LookupError(where)

    def forward(self, model, batch):
        self.stumble("forward")
        return super().forward(model, batch)

    def loss(self, outputs, batch):
        self.stumble("loss")
        return super().loss(outputs, batch)

    def after_backward(self, model):
        self.stumble("reduce")

    def update(self, model, optimizer, scaler):
        super().update(model, optimizer, scaler)
        self.stumble("update")

    def log(self, loss, outputs, model):
        self.stumble("logging")


@pytest.mark.parametrize("at", ["forward", "loss", "reduce", "update", "logging"])
def test_the_users_own_exception_comes_out_of_a_quiet_step(at, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(Raising, "at", at)
    for quiet in (True, False):
        step = Raising()
        model, optimizers, scaler = steps.build(step, seed=7)
        recorder = Recorder(step, model, optimizers, scaler, tmp_path / str(quiet), "r")
        if not quiet:
            recorder.quiet.step = lambda batch, sample_ids: None
        with pytest.raises(LookupError) as caught:
            for k in range(6):
                recorder.train_step(step.batch(k))
        assert recorder.step_index == 5 and recorder.failures == []
        (bundle,) = recorder.bundles
        evidence = jsonio.loads((bundle / "evidence.json").read_bytes())
        evidence["exception"].pop("raised_at")
        said.append((caught.value.args, evidence))
    assert said[0] == said[1]
    assert said[0][1]["stage"] == at


def test_a_request_is_answered_by_a_quiet_run(tmp_path):
    from workbench.record.requests import ask

    step = Plain()
    model, optimizers, scaler = steps.build(step)
    recorder = Recorder(step, model, optimizers, scaler, tmp_path, "r")
    for k in range(4):
        recorder.train_step(step.batch(k))
    ask(tmp_path, "to look", "r")
    assert recorder.train_step(step.batch(4)).incident is not None
    assert recorder.train_step(step.batch(5)).incident is None


def test_what_waits_is_written_while_training_stands_still(tmp_path, monkeypatch):
    monkeypatch.setattr(group, "HOLD_S", 1e9)
    step = Plain()
    model, optimizers, scaler = steps.build(step)
    recorder = Recorder(step, model, optimizers, scaler, tmp_path, "r")
    for k in range(5):
        recorder.train_step(step.batch(k))
    path = tmp_path / "r.ledger.jsonl"
    assert recorder.quiet.group.waits
    for _ in range(100):
        if not recorder.quiet.group.waits:
            break
        threading.Event().wait(0.1)
    recorder.quiet.group.write()  # waits until the other thread has written
    assert [json.loads(line)["step"] for line in path.read_bytes().splitlines()] == list(range(5))


ENDING = """
import gc, os, sys, torch
sys.path.insert(0, {here!r})
import test_quiet as here
from workbench.record import group
group.HOLD_S = group.STALL_S = 1e9
step = here.Plain()
model, optimizers, scaler = here.steps.build(step)
recorder = here.Recorder(step, model, optimizers, scaler, sys.argv[1], "r")
for k in range(5):
    recorder.train_step(step.batch(k))
if os.fork() == 0:
    sys.exit(0)  # a child has no records of its own
os.wait()
assert recorder.quiet.group.waits
del recorder  # without close
gc.collect()
"""


def test_the_exit_of_the_interpreter_writes_what_waits_once(tmp_path):
    here = os.path.dirname(__file__)  # noqa: PTH120 - goes into a script
    root = os.path.dirname(os.path.dirname(os.path.dirname(here)))  # noqa: PTH120
    done = subprocess.run(
        [sys.executable, "-c", ENDING.format(here=here), str(tmp_path)], check=False,
        env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    lines = (tmp_path / "r.ledger.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(5))
