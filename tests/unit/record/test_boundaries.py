"""What the record says of each boundary: deep scans, the first bad micro-step, moments."""

from __future__ import annotations

import math

import pytest
import recorded_steps as steps
import torch
from recorder_helpers import ledger, make

from workbench import NonFiniteError, Policy, open_bundle
from workbench.record import soft


class _Large(steps.Cnn):
    """A batch field too large to be read at every step."""

    def batch(self, k, bad=False, hole=False):
        found = super().batch(k, bad)
        found["extra"] = torch.zeros(soft.ALWAYS + 1)
        if hole:
            found["extra"][-1] = math.nan
        return found


def _where(record):
    return [(gate["where"], gate["name"]) for gate in record["soft_gates"]]


def test_a_large_field_is_scanned_on_request_and_after_a_trip(tmp_path):
    step, recorder = make(_Large, tmp_path, Policy(on_nonfinite="skip", deep_scan_every=0))
    recorder.train_step(step.batch(0, hole=True))  # nothing unusual: not read
    recorder.scan_next()
    recorder.train_step(step.batch(1, hole=True))  # asked for
    recorder.train_step(step.batch(2, hole=True))  # asked for once only
    recorder.train_step(step.batch(3, bad=True, hole=True))  # trips: read after all
    recorder.train_step(step.batch(4, hole=True))  # the step after a trip
    recorder.train_step(step.batch(5, hole=True))
    seen = [("batch", "extra") in _where(record) for record in ledger(tmp_path)]
    assert seen == [False, True, False, True, True, False]


def test_key_scalars_are_in_the_batch_summary():
    batch = {"x": torch.ones(2, 3), "n": torch.tensor(7), "weight": 0.5, "name": "a"}
    assert soft.summarize([batch])["scalars"] == {"n": 7, "weight": 0.5}


class _AccumulatedNan(steps.BadGradient):
    """The gradient is NaN from the micro-batch whose ``w`` is not positive."""


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_the_first_bad_micro_step_is_recorded(tmp_path, bad):
    step, recorder = make(_AccumulatedNan, tmp_path)
    batches = [step.batch(k, bad=k >= bad) for k in range(3)]
    with pytest.raises(NonFiniteError, match=f"first after micro-step {bad}") as raised:
        recorder.train_step(micro_batches=batches)
    evidence = open_bundle(raised.value.bundle).evidence()
    assert evidence["gradients"]["first_bad_micro_step"] == bad
    assert ledger(tmp_path)[-1]["micro_step"] == bad


def test_the_first_bad_micro_step_of_a_loop_of_the_users_own(tmp_path):
    step, recorder = make(_AccumulatedNan, tmp_path)
    model = recorder.model
    with pytest.raises(NonFiniteError) as raised, recorder.step() as s:
        for i in range(3):
            batch = step.batch(i, bad=i >= 1)
            s.micro_batch(i, batch)
            loss = step.loss(step.forward(model, batch), batch) / 3
            s.loss(loss)
            loss.backward()
        s.gradients()
    evidence = open_bundle(raised.value.bundle).evidence()
    assert evidence["gradients"]["first_bad_micro_step"] == 1


def test_a_negative_second_moment_is_in_the_ledger(tmp_path):
    step, recorder = make(steps.Cnn, tmp_path)
    recorder.train_step(step.batch(0))
    (optimizer,) = recorder.optimizers
    weight = recorder.model[0].weight
    optimizer.state[weight]["exp_avg_sq"].fill_(-1.0)
    optimizer.param_groups[0]["lr"] = 0.0
    with pytest.raises(NonFiniteError):
        recorder.train_step(step.batch(1))
    gates = ledger(tmp_path)[-1]["soft_gates"]
    assert {"optimizer_state"} == {gate["where"] for gate in gates}
    assert gates[0]["name"] == "optimizer_state:0.weight/exp_avg_sq"
    assert gates[0]["least"] < 0
