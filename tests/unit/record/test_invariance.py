"""Training computes the same with and without the recorder: parameters, state, random numbers."""

import random

import numpy as np
import pytest
import recorded_steps as steps
import torch
from torch import nn

from workbench import Policy, Recorder
from workbench.step import StepRunner, capture_rng
from workbench.step.digests import state_fingerprint

STEPS = 4


def seeded(step):
    np.random.seed(7)
    return steps.build(step, seed=7)


def fingerprint(model, optimizers):
    return state_fingerprint(model, optimizers), capture_rng().digest()


@pytest.mark.parametrize("policy", [Policy(), Policy(recovery_every=1, deep_scan_every=1)])
@pytest.mark.parametrize("name", steps.ALL)
def test_the_high_level_form_changes_nothing(name, policy, tmp_path):
    step = steps.ALL[name]()
    model, optimizers, scaler = seeded(step)
    for k in range(STEPS):
        runner = StepRunner(step, model, optimizers, scaler)
        runner.begin([step.batch(k)], k)
        while runner.next_unit is not None:
            runner.advance()
    bare = fingerprint(model, optimizers)
    step = steps.ALL[name]()
    model, optimizers, scaler = seeded(step)
    recorder = Recorder(step, model, optimizers, scaler, tmp_path, policy=policy)
    for k in range(STEPS):
        recorder.train_step(step.batch(k), capture="once" if k == 1 else None)
    assert fingerprint(model, optimizers) == bare
    assert recorder.failures == []
    assert len(recorder.bundles) == 1


def plain_loop(model, optimizer, scaler, batches, norm):
    for batch in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=scaler is not None):
            loss = model(batch["x"]).float().pow(2).mean() * (1 + random.random())
        if scaler is None:
            loss.backward()
        else:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
        if norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), norm)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()


def recorded_loop(model, optimizer, scaler, batches, norm, directory):
    recorder = Recorder(None, model, optimizer, scaler, directory, policy=Policy(recovery_every=2))
    for batch in batches:
        optimizer.zero_grad()
        with recorder.step(batch) as s:
            with torch.autocast("cpu", torch.float16, enabled=scaler is not None):
                loss = model(batch["x"]).float().pow(2).mean() * (1 + random.random())
            s.loss(loss)
            (loss if scaler is None else scaler.scale(loss)).backward()
            if s.gradients(max_norm=norm):
                s.update()
            s.logging(loss=loss.item())
    assert recorder.failures == []
    return recorder


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("norm", [None, 0.1])
def test_the_low_level_form_changes_nothing(scaled, norm, tmp_path):
    step = steps.Half()
    batches = [step.batch(k) for k in range(STEPS)]
    results = []
    for recorded in (False, True):
        model, (optimizer,), scaler = seeded(step)
        scaler = scaler if scaled else None
        if recorded:
            recorded_loop(model, optimizer, scaler, batches, norm, tmp_path)
        else:
            plain_loop(model, optimizer, scaler, batches, norm)
        results.append(fingerprint(model, [optimizer]))
    assert results[0] == results[1]


def test_an_lbfgs_closure_changes_nothing(tmp_path):
    results = []
    for recorded in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
        recorder = Recorder(None, model, optimizer, None, tmp_path)
        x = torch.randn(8, 3)

        def closure(optimizer=optimizer, model=model, x=x):
            optimizer.zero_grad()
            loss = (model(x) - 1).pow(2).mean()
            loss.backward()
            return loss

        for _ in range(3):
            if not recorded:
                optimizer.step(closure)
                continue
            with recorder.step({"x": x}, capture="look") as s:
                s.loss(closure())
                if s.gradients():
                    s.update(closure)
            assert s.result.updated
        assert recorder.failures == []
        results.append(fingerprint(model, [optimizer]))
    assert results[0] == results[1]


def test_a_failing_recorder_does_not_stop_training(tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("a file where the folder should be")
    step = steps.Cnn()
    model, optimizers, scaler = steps.build(step)
    recorder = Recorder(
        step, model, optimizers, scaler, blocked, policy=Policy(on_nonfinite="skip")
    )
    assert recorder.train_step(step.batch(0)).updated
    result = recorder.train_step(step.batch(1, bad=True))
    assert result.incident is None
    assert result.skipped_by == "gate"
    assert any("ledger failed" in failure for failure in recorder.failures)
    assert any("bundle failed" in failure for failure in recorder.failures)
    assert recorder.train_step(step.batch(2)).updated


def test_keyboard_interrupt_is_no_incident(tmp_path):
    class Interrupted(steps.Cnn):
        def forward(self, model, batch):
            raise KeyboardInterrupt

    step = Interrupted()
    model, optimizers, scaler = steps.build(step)
    recorder = Recorder(step, model, optimizers, scaler, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        recorder.train_step(step.batch(0))
    with pytest.raises(KeyboardInterrupt), recorder.step(step.batch(0)):
        raise KeyboardInterrupt
    assert recorder.bundles == []
