import math

import pytest
import recorded_steps as steps
import torch
from torch import nn

from workbench import NonFiniteError, Policy, Recorder, Replay, TrainingStep, open_bundle
from workbench.record import scanning
from workbench.record.scanning import UpdateScan, share_of
from workbench.step.runner import StepValues


def test_shares_reach_every_tensor_in_turn():
    tensors = [torch.zeros(n) for n in (3, 5, 4, 20, 1)]
    seen, start = [], 0
    for _ in range(4):
        chosen, start = share_of(tensors, start, 8)
        assert sum(t.numel() for t in chosen) <= 8 or len(chosen) == 1
        seen += [t.numel() for t in chosen]
    assert seen[:5] == [3, 5, 4, 20, 1]
    assert share_of([], 0, 8) == ([], 0)


def scan(model, every=10):
    return UpdateScan(model, every)


def test_large_models_are_read_in_full_at_times_and_on_hints(monkeypatch):
    monkeypatch.setattr(scanning, "SMALL", 4)
    model = nn.Linear(4, 4)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    one = scan(model)
    loss = torch.tensor(1.0)
    assert one.in_full(0, StepValues(grad_norm=1.0), loss, [sgd])  # every tenth step
    assert not one.in_full(1, StepValues(grad_norm=1.1), loss, [sgd])
    assert one.in_full(2, StepValues(grad_norm=1e4), loss, [sgd])  # the norm jumped
    assert not one.in_full(3, StepValues(grad_norm=1e4), loss, [sgd])
    assert one.in_full(4, StepValues(grad_norm=1e4), torch.tensor(1e9), [sgd])
    sgd.param_groups[0]["lr"] = math.nan
    assert one.in_full(5, StepValues(grad_norm=1e4), torch.tensor(1e9), [sgd])
    assert scan(nn.Linear(1, 1)).in_full(1, StepValues(), None, [sgd])  # a small model, always


class Wide(TrainingStep):
    """The optimizer poisons its own state without any hint."""

    def build_model(self):
        return nn.Sequential(nn.Linear(200, 200), nn.Linear(200, 1))

    def build_optimizer(self, model):
        return torch.optim.Adam(model.parameters(), 1e-3)

    def forward(self, model, batch):
        return model(batch)

    def loss(self, outputs, batch):
        return outputs.pow(2).mean()

    def update(self, model, optimizer, scaler):
        super().update(model, optimizer, scaler)
        if self.step_index == 2:
            optimizer.state[model[0].bias]["exp_avg_sq"][7] = math.inf


def test_a_poisoned_state_of_a_large_model_is_found_within_the_next_turns(tmp_path):
    step = Wide()
    model, optimizers, _ = steps.build(step)
    assert sum(p.numel() for p in model.parameters()) > scanning.SMALL
    recorder = Recorder(step, model, optimizers, None, tmp_path, policy=Policy())
    with pytest.raises(NonFiniteError) as raised:
        for _ in range(20):
            recorder.train_step(torch.ones(2, 200))
    bad = open_bundle(raised.value.bundle).first_bad
    assert bad.tensor == "optimizer_state:0.bias/exp_avg_sq"
    assert 2 <= bad.step <= 2 + 12  # tensors: 4 parameters and 8 of state


def test_buffers_bad_before_the_step_do_not_trip(tmp_path):
    class Old(steps.Cnn):
        def build_model(self):
            model = super().build_model()
            model.register_buffer("mask", torch.tensor([0.0, -math.inf]))
            return model

    step = Old()
    model, optimizers, _ = steps.build(step)
    recorder = Recorder(step, model, optimizers, None, tmp_path)
    assert recorder.train_step(step.batch(0)).updated
    with pytest.raises(NonFiniteError) as raised:
        forward = step.forward

        def spoil(model, batch):
            model.mask[0] = -math.inf
            return forward(model, batch)

        step.forward = spoil
        recorder.train_step(step.batch(1))
    assert open_bundle(raised.value.bundle).first_bad.tensor == "buffer:mask"


class Biased(Wide):
    """Attention whose learned bias holds -Inf where attention is forbidden."""

    def build_model(self):
        model = nn.Linear(2, 2)
        model.register_parameter("mask", nn.Parameter(torch.tensor([0.0, -math.inf])))
        return model

    def build_optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.1)

    def forward(self, model, batch):
        return (model(batch) + model.mask).softmax(-1) @ batch

    def update(self, model, optimizer, scaler):
        TrainingStep.update(self, model, optimizer, scaler)
        if self.step_index == 3:
            with torch.no_grad():
                model.mask[0] = -math.inf


def test_a_parameter_that_holds_its_mask_does_not_trip_until_an_element_joins_it(tmp_path):
    step = Biased()
    model, optimizers, _ = steps.build(step)
    recorder = Recorder(step, model, optimizers, None, tmp_path)
    batch = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    assert recorder.train_step(batch).updated and recorder.train_step(batch).updated
    captured = recorder.train_step(batch, capture="to replay it").incident
    assert Replay(captured, step=step).verdict().verdict == "bitwise"
    with pytest.raises(NonFiniteError) as raised:
        recorder.train_step(batch)
    assert open_bundle(raised.value.bundle).first_bad.tensor == "parameter:mask"
