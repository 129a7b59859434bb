"""Replay along the kept steps: what departs is named, and so is what left its envelope."""

import math

import pytest
import torch

from tests.unit.replay import steps
from tests.unit.replay.trajectory_steps import replayed, train
from workbench.errors import BundleError, CannotRunError
from workbench.evidence import find_bundles, open_bundle
from workbench.evidence.table import table_from_rows
from workbench.record import Policy, Recorder
from workbench.replay.envelope import first_outlier, leaves
from workbench.replay.kept_steps import INDEX
from workbench.step.digests import sums_of
from workbench.step.storage import read_state


class Decaying(steps.LogOfSoftmax):
    """Momentum, dropout, and a learning rate that the user's loop lowers."""

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def decay(optimizer):
    return [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)]


@pytest.mark.parametrize("every", [1, 3, 5])
@pytest.mark.parametrize("kind", [steps.LogOfSoftmax, Decaying])
def test_every_kept_step_replays_as_recorded(tmp_path, kind, every):
    schedulers = decay if kind is Decaying else None
    path = train(kind(), tmp_path, every=every, schedulers=schedulers)
    found = replayed(path, kind)
    assert found.departure is None
    assert list(found.steps["step"]) == list(range(8))
    assert list(found.steps["loss_equal"]) == [True] * 8
    assert list(found.steps["recovery_point"][:-1]) == [k % every == 0 for k in range(7)]
    assert math.isnan(found.steps["loss"][7]) or math.isinf(found.steps["loss"][7])
    assert found.steps["bad"][7] == "loss: loss"
    if kind is Decaying:
        assert found.steps["learning_rate"][3] == pytest.approx(0.05 * 0.7**3)


def test_steps_between_recovery_points_keep_batch_random_numbers_and_a_fingerprint(tmp_path):
    bundle = open_bundle(train(steps.LogOfSoftmax(), tmp_path, every=3))
    listed = bundle.json(INDEX)["steps"]
    assert [entry["step"] for entry in listed] == list(range(7))
    for entry in listed:
        state = read_state(bundle, entry["prefix"])
        full = entry["step"] % 3 == 0
        assert entry["recovery_point"] is full
        assert (state.model is None) is not full and bool(state.optimizers) is full
        assert (entry["sums"] is None) is full and (entry["fingerprint"] is None) is not full
        assert state.micro_batches and entry["loss_bits"]


@pytest.mark.parametrize("every", [1, 4])
def test_a_write_from_outside_is_the_first_departure(tmp_path, every):
    def prune(k, model, optimizer):
        if k == 3:
            with torch.no_grad():
                model[2].weight.mul_(0.5)

    found = replayed(train(steps.LogOfSoftmax(), tmp_path, between=prune, every=every),
                     steps.LogOfSoftmax)  # fmt: skip
    assert (found.departure.step, found.departure.what) == (3, "parameters")
    assert found.departure.names == ("2.weight",)
    assert found.departure.repeats is True
    assert found.departure.sentence == (
        "Step 3 is the first that departs from the record: '2.weight' is not what step 2 left. "
        "Replayed again, step 2 leaves the same values each time: something outside the step wrote "
        "to it (averaging, pruning, a loaded checkpoint)."
    )
    # the next full state takes the record up again: at step 3 itself, or at step 4
    assert found.steps["loss_equal"].tolist() == [True] * 3 + [every == 1] + [True] * 4
    assert found.steps["follows"].tolist() == [True] * 3 + [every == 1] + [True] * 4


def test_optimizer_state_written_from_outside(tmp_path):
    def forget(k, model, optimizer):
        if k == 2:
            for state in optimizer.state.values():
                state["exp_avg"].zero_()

    found = replayed(train(steps.LogOfSoftmax(), tmp_path, between=forget), steps.LogOfSoftmax)
    assert (found.departure.step, found.departure.what) == (2, "optimizer_state")
    assert "0.weight/exp_avg" in found.departure.names


def test_random_numbers_drawn_between_steps_are_no_departure(tmp_path):
    def draw(k, model, optimizer):
        if k == 2:
            torch.rand(5)

    found = replayed(train(steps.LogOfSoftmax(), tmp_path, between=draw, every=4),
                     steps.LogOfSoftmax)  # fmt: skip
    assert found.departure is None
    assert list(found.steps["rng_continues"])[1:4] == [True, False, True]


def test_a_loss_with_other_bits_is_named(tmp_path):
    class Other(steps.LogOfSoftmax):
        def loss(self, outputs, batch):
            loss = super().loss(outputs, batch)
            return loss * 1.5 if self.step_index == 4 else loss

    path = train(steps.LogOfSoftmax(), tmp_path)
    found = replayed(path, Other)
    assert (found.departure.step, found.departure.what) == (4, "loss")


def test_a_skipped_update_stays_skipped(tmp_path):
    policy = Policy(on_nonfinite="skip", recovery_every=4, max_bundles=8)

    class Twice(steps.LogOfSoftmax):
        def loss(self, outputs, batch):
            loss = super().loss(outputs, batch)
            return loss * float("nan") if self.step_index == 2 else loss

    path = train(Twice(), tmp_path, policy=policy)
    found = replayed(path, Twice)
    assert found.last == 7 and found.departure is None
    assert found.steps["bad"][2] == "loss: loss"
    assert all(found.steps["loss_equal"])


def test_a_scaler_skip_between_recovery_points_is_no_recovery_point(tmp_path):
    class Skips(steps.Scaled):
        def loss(self, outputs, batch):
            loss = super().loss(outputs, batch)
            if self.step_index == 7:
                return loss * float("nan")
            return loss + torch.sqrt((outputs * 0).square().sum()) if self.step_index == 2 else loss

    path = train(Skips(), tmp_path, every=5)
    listed = open_bundle(path).json(INDEX)["steps"]
    assert [entry["recovery_point"] for entry in listed] == [k % 5 == 0 for k in range(7)]
    found = replayed(path, Skips)
    assert found.departure is None
    scales = list(found.steps["loss_scale"])
    assert scales[2] == 1024.0 and scales[3] == 512.0


def test_it_leads_to_a_step_whose_own_parameters_were_not_kept(tmp_path):
    def spike(k, model, optimizer):
        optimizer.param_groups[0]["lr"] = float("inf") if k == 4 else 0.01

    path = train(steps.LogOfSoftmax(), tmp_path, between=spike, every=3)
    bundle = open_bundle(path)
    assert bundle.completeness["forward_loss"].startswith("missing")
    assert bundle.completeness["trajectory"] == "complete"
    found = replayed(path, steps.LogOfSoftmax)
    assert found.departure is None and found.last == 4
    assert found.steps["bad"][4].startswith("after_update: parameter:")


def test_a_damaged_index_is_said(tmp_path):
    path = train(steps.LogOfSoftmax(), tmp_path)
    index = path / INDEX
    index.write_text(index.read_text().replace('"prefix"', '"suffix"'))
    with pytest.raises(BundleError, match=r"index\.json"):
        replayed(path, steps.LogOfSoftmax)


@pytest.mark.parametrize("every", [1, 3])
def test_accumulation_in_the_users_own_loop(tmp_path, every):
    step = steps.Scaled()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = step.build_model()
        optimizer, scaler = step.build_optimizer(model), step.build_scaler()
        recorder = Recorder(
            step, model, optimizer, scaler, tmp_path, "run", Policy(recovery_every=every)
        )
        for k in range(6):
            parts = [steps.batch(4), steps.batch(3)]
            optimizer.zero_grad()
            with recorder.step(micro_batches=parts, capture="end" if k == 5 else None) as s:
                for i, part in enumerate(parts):
                    s.micro_batch(i)
                    loss = step.loss(step.forward(model, part), part) / 2
                    s.loss(loss)
                    scaler.scale(loss).backward()
                if s.gradients(max_norm=1.0):
                    s.update()
    found = replayed(find_bundles(tmp_path)[0], steps.Scaled)
    assert found.departure is None
    assert list(found.steps["loss_equal"]) == [True] * 6


def test_values_that_grow_leave_their_envelope_before_the_failure(tmp_path):
    def faster(k, model, optimizer):
        optimizer.param_groups[0]["lr"] = 0.01 if k < 8 else 0.2

    path = train(steps.LogOfSoftmax(), tmp_path, bad_at=12, between=faster)
    found = replayed(path, steps.LogOfSoftmax)
    assert found.departure is None
    assert found.outlier.step == 8 and found.outlier.series == "update_ratio"
    assert "4 steps earlier" in found.outlier.sentence(found.last)


def test_a_bundle_without_earlier_steps_says_what_to_record(tmp_path):
    path = train(steps.LogOfSoftmax(), tmp_path, policy=Policy())
    with pytest.raises(CannotRunError, match="recovery_every"):
        replayed(path, steps.LogOfSoftmax)


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ([1.0] * 8, None),
        ([1.0, 1.1, 0.9, 1.0, 3.0], None),
        ([1.0, 1.1, 0.9, 1.0, 5.0, 1.0], 4),
        ([1.0, 1.0, 1.0, 1.0, 0.1], 4),
        ([1.0, 10.0, 0.1, 3.0, 40.0, 0.2], None),
        ([1.0, 2.0, 900.0], None),
        ([-1.0, -1.1, -0.9, -1.0, -60.0], 4),
    ],
)
def test_the_envelope(values, place):
    assert leaves(values) == place


def test_bit_sums_see_one_bit_in_any_dtype():
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.complex64):
        tensor = torch.ones(5, dtype=dtype)
        other = tensor.clone()
        other[3] = 2
        assert sums_of([("a", tensor)]) != sums_of([("a", other)])
        assert sums_of([("a", tensor.clone()[::1])]) == sums_of([("a", tensor)])
    assert sums_of([("e", torch.empty(0))]) == {"e": 0}


def test_steps_that_depart_make_no_envelope_and_no_outlier():
    follows = [True] * 6 + [False] * 3 + [True]
    same = {"loss": 1.0, "gradient_norm": 1.0}
    steps = table_from_rows([{"step": k, "follows": f} | same for k, f in enumerate(follows)])
    values = [1.0] * 6 + [1.0, 900.0, 1.0] + [20.0]
    nothing = {"rms": math.nan, "gradient_absmax": math.nan, "update_ratio": math.nan}
    rows = [{"step": k, "parameter": "w", "absmax": v} | nothing for k, v in enumerate(values)]
    found = first_outlier(steps, table_from_rows(rows))
    assert found.sentence(9) == (
        "At step 9, in the failing step itself, the largest magnitude of 'w' left its usual "
        "envelope: 20, where the 6 earlier steps that repeat the record had a median of 1. "
        "Steps 6 to 8 were not replayed as recorded, so it may have left it before."
    )
    assert first_outlier(steps, table_from_rows(rows[:9])) is None


def test_a_number_that_there_is_not_is_told_from_one_that_is_nan():
    from workbench.replay.step_ranges import _wide_norm, known

    none = {"update_ratio": math.nan, "gradient_norm": math.nan, "loss": math.nan}
    at_loss = known({"bad": "loss: loss", **none})
    assert math.isnan(at_loss["loss"]) and at_loss["gradient_norm"] is None
    assert at_loss["update_ratio"] is None
    assert math.isnan(known({"bad": "backward: gradient:w", **none})["gradient_norm"])
    # the squares overflow float32, the norm does not
    assert _wide_norm({"w": torch.full((4,), 1e30)}) == pytest.approx(2e30)
    assert _wide_norm({}) is None
