"""Order lint: each remark is made on the loop it is about, once, and on no good loop."""

from __future__ import annotations

import math

import pytest
import recorded_steps as steps
import torch
from recorder_helpers import ledger, make

from workbench import NonFiniteError, Policy, Recorder
from workbench.record.order_lint import PATIENCE, REMARKS


def _scaled(tmp_path, **kwargs):
    step = steps.Cnn()
    model = step.build_model()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    recorder = Recorder(step, model, optimizer, scaler, tmp_path, "r", **kwargs)
    return step, model, optimizer, scaler, recorder


def _remarks(tmp_path):
    return [name for record in ledger(tmp_path) for name in record["order"]]


def _good(s, step, model, scaler, batch, max_norm=1.0):
    loss = sum(step.loss(step.forward(model, batch), batch).values())
    if s.loss(loss):
        scaler.scale(loss).backward()
        if s.gradients(max_norm=max_norm):
            s.update()


def test_a_good_loop_is_not_remarked_on(tmp_path):
    step, model, optimizer, scaler, recorder = _scaled(tmp_path)
    for k in range(PATIENCE + 2):
        with recorder.step(step.batch(k)) as s:
            _good(s, step, model, scaler, step.batch(k))
        optimizer.zero_grad()
    assert _remarks(tmp_path) == []


def test_a_loop_that_never_clips_is_told_once(tmp_path):
    step, model, optimizer, scaler, recorder = _scaled(tmp_path)
    for k in range(PATIENCE + 5):
        with recorder.step(step.batch(k)) as s:
            _good(s, step, model, scaler, step.batch(k), max_norm=None)
        optimizer.zero_grad()
    assert _remarks(tmp_path) == ["never_clips"]
    assert ledger(tmp_path)[PATIENCE - 1]["order"] == ["never_clips"]


def test_clipping_before_unscaling(tmp_path):
    class Scaled(steps.Clipped):
        def build_scaler(self):
            return torch.amp.GradScaler("cpu", init_scale=8.0)

        def unscale(self, optimizers, scaler):
            pass

    step, recorder = make(Scaled, tmp_path)
    recorder.train_step(step.batch(0))
    assert _remarks(tmp_path) == ["clips_before_unscale", "scaled_norm"]


def test_an_optimizer_stepped_past_the_scaler(tmp_path):
    step, model, optimizer, scaler, recorder = _scaled(tmp_path)
    for k in range(2):
        with recorder.step(step.batch(k)) as s:
            _good(s, step, model, scaler, step.batch(k))
    assert _remarks(tmp_path) == []
    with recorder.step(step.batch(2)) as s:
        loss = sum(step.loss(step.forward(model, step.batch(2)), step.batch(2)).values())
        s.loss(loss)
        scaler.scale(loss).backward()
        s.gradients()
        with s.watch_update():
            optimizer.step()
            scaler.update()
    assert _remarks(tmp_path) == ["optimizer_past_the_scaler"]


@pytest.mark.parametrize("inside", [True, False])
def test_a_scheduler_that_advances_on_a_skipped_step(tmp_path, inside):
    step, model, optimizer, scaler, recorder = _scaled(tmp_path)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    recorder = Recorder(step, model, optimizer, scaler, tmp_path, "r", schedulers=[scheduler])
    for k in range(3):
        with recorder.step(step.batch(k)) as s:
            loss = step.forward(model, step.batch(k)).square().mean()
            s.loss(loss)
            scaler.scale(loss * (math.inf if k == 1 else 1.0)).backward()
            if s.gradients(max_norm=1.0):
                s.update()
            if inside:
                scheduler.step()
        optimizer.zero_grad()
        if not inside:
            scheduler.step()
    assert _remarks(tmp_path) == ["scheduler_on_skipped_step"]


def test_a_finite_value_logged_for_a_loss_that_is_not(tmp_path):
    step, recorder = make(steps.Cnn, tmp_path, Policy(on_nonfinite="continue"))
    with recorder.step(step.batch(0)) as s:
        s.loss(torch.tensor(math.nan))
        s.logging(loss=0.25)
    assert _remarks(tmp_path) == ["filtered_loss"]


def test_an_update_without_a_gate(tmp_path):
    step, recorder = make(steps.Cnn, tmp_path)
    with recorder.step(step.batch(0)) as s:
        step.forward(recorder.model, step.batch(0)).square().mean().backward()
        s.update()
    assert _remarks(tmp_path) == ["no_gate"]


def test_remarks_say_what_to_do_and_go_with_the_bundle(tmp_path, caplog):
    step, recorder = make(steps.Cnn, tmp_path)
    with recorder.step(step.batch(0)) as s:
        step.forward(recorder.model, step.batch(0)).square().mean().backward()
        s.update()
    assert REMARKS["no_gate"] in caplog.text
    with pytest.raises(NonFiniteError) as raised:
        recorder.train_step(step.batch(1, bad=True))
    from workbench import open_bundle

    assert open_bundle(raised.value.bundle).evidence()["order"] == ["no_gate"]
