"""Tensors kept from a run for looking at: the run's own bits, within a budget."""

import pytest
import torch

from tests.unit.replay.steps import LogOfSoftmax, Plain, Scaled, SqrtAtZero, record
from workbench.errors import CannotRunError, UsageError
from workbench.replay import Replay
from workbench.step.digests import loss_bits


def test_what_is_kept_are_the_tensors_of_the_run(random_numbers_stay):
    replay = Replay.from_source(record(Plain()))
    result = replay.run()
    kept = replay.retain(["0", "1", "", "loss", "gradient:0.weight", "parameter:2.bias"])
    assert set(kept) == {"0", "1", "", "loss", "gradient:0.weight", "parameter:2.bias"}
    assert loss_bits(kept["loss"]) == result.loss_bits
    assert kept["0"].shape == (4, 8) and kept[""].shape == (4, 3)
    assert (kept["1"] == 0).any() and not kept["0"].requires_grad  # dropout has dropped some
    assert kept["gradient:0.weight"].isfinite().all()
    before = replay.source.state.model.tensors["2.bias"]
    assert not torch.equal(kept["parameter:2.bias"], before)  # the step ran to its end


def test_the_live_session_is_left_alone():
    replay = Replay.from_source(record(Plain()))
    replay.forward()
    session = replay.session
    replay.retain(["2"])
    assert replay.session is session
    assert replay.loss().status == "clean"
    hooks = session.runner.model[2]._forward_hooks
    assert not hooks


def test_it_stops_where_the_run_stops_and_takes_conditions():
    replay = Replay.from_source(record(LogOfSoftmax()))
    kept = replay.retain(["2", "loss", "gradient:2.bias"])
    assert set(kept) == {"2", "loss"}  # the loss trips, so there is no gradient
    assert not kept["loss"].isfinite()
    double = replay.retain(["2"], conditions=replay.nearest.replace(dtype="float64"))
    assert double["2"].dtype is torch.float64
    assert set(replay.retain(["2", "loss"], until="forward")) == {"2"}


@pytest.mark.parametrize("kind", [SqrtAtZero, Scaled])
def test_gradients_are_those_of_the_gate(kind):
    replay = Replay.from_source(record(kind()))
    kept = replay.retain(["gradient:2.weight"])["gradient:2.weight"]
    assert bool(kept.isnan().any()) is (kind is SqrtAtZero)
    if kind is Scaled:
        assert kept.norm() < 100  # unscaled: the scale is 1024


def test_several_outputs():
    class Pair(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(4, 3)

        def forward(self, x):
            out = self.inner(x)
            return out, {"again": out + 1}

    class Step(Plain):
        def build_model(self):
            return Pair()

        def forward(self, model, batch):
            return model(batch["x"])[0]

    kept = Replay.from_source(record(Step())).retain(["", "inner"])
    assert set(kept) == {"[0]", "[1]", "inner"}
    assert torch.equal(kept["[0]"] + 1, kept["[1]"])


def test_bad_names_and_budgets():
    replay = Replay.from_source(record(Plain()))
    with pytest.raises(UsageError, match="'9'"):
        replay.retain(["0", "9"])
    with pytest.raises(UsageError, match="gradient:nope"):
        replay.retain(["gradient:nope"])
    with pytest.raises(UsageError, match="lunch"):
        replay.retain(["0"], until="lunch")
    with pytest.raises(CannotRunError, match="'2'"):
        replay.retain(["0", "2"], max_bytes=4 * 8 * 4)
