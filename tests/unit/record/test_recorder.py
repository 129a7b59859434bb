import json
from typing import ClassVar

import pytest
import recorded_steps as steps
import torch
from recorder_helpers import ledger, make
from torch import nn

from workbench import Alerts, Domain, NonFiniteError, Policy, Recorder, open_bundle
from workbench.errors import UsageError
from workbench.evidence import find_bundles
from workbench.record.ledger import FIELDS
from workbench.step import read_state


def test_every_step_writes_one_record_with_every_field(tmp_path):
    step, recorder = make(
        steps.Half, tmp_path, provenance={"dataset_version": "v1", "model_commit": "abc"}
    )
    recorder.train_step(step.batch(0), sample_ids=[4, 5])
    recorder.train_step(step.batch(1, s=1e38))  # overflows when it is scaled: the scaler skips
    first, second = ledger(tmp_path)
    assert set(first) == set(FIELDS)
    assert first["dataset_version"] == "v1"
    assert first["model_commit"] == "abc"
    assert first["sample_ids"] == [4, 5]
    assert first["loss_scale"] == 1024.0
    assert first["optimizers"][0]["updated"] == "yes"
    assert first["grad_norm"] > 0
    assert first["precision"] == "float16"
    assert second["optimizers"][0] == {
        "attempted": True, "updated": "no", "skipped_by": "scaler", "found_inf": 1.0,
    }  # fmt: skip
    assert second["consecutive_skips"] == 1
    assert second["loss_scale_previous"] == 1024.0
    assert second["rng_digest"] != first["rng_digest"]
    assert second["batch_fingerprint"] != first["batch_fingerprint"]


def test_a_scaler_skip_is_counted_and_not_bundled_until_the_alert(tmp_path):
    policy = Policy(alerts=Alerts(consecutive_skips=3))
    step, recorder = make(steps.Half, tmp_path, policy)
    results = [recorder.train_step(step.batch(k, s=1e38)) for k in range(3)]
    assert [r.skipped_by for r in results] == ["scaler"] * 3
    assert [r.incident is None for r in results] == [True, True, False]
    assert not any(r.updated for r in results)
    bundle = open_bundle(results[2].incident)
    assert bundle.kind == "alert"
    assert bundle.first_bad.sink == "alert"
    assert bundle.first_bad.stage == "unscale"
    assert "3 steps in a row" in bundle.first_bad.message
    assert bundle.completeness["update"] == "complete"
    assert bundle.evidence()["digests"]["gradients"]
    assert recorder.train_step(step.batch(9, s=1e38)).incident is None  # one alert a streak
    assert recorder.first_bad is None


def test_skip_withholds_the_update_and_goes_on(tmp_path):
    step, recorder = make(steps.BadGradient, tmp_path, Policy(on_nonfinite="skip"))
    recorder.train_step(step.batch(0))
    before = {n: p.detach().clone() for n, p in recorder.model.named_parameters()}
    result = recorder.train_step(step.batch(1, bad=True))
    assert result.skipped_by == "gate"
    assert not result.updated
    assert result.incident is not None
    for name, parameter in recorder.model.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.grad is None
    assert recorder.train_step(step.batch(2)).updated


def test_skip_backs_the_loss_scale_off(tmp_path):
    class Unmasked(steps.Half):  # NaN gradients where the loss is finite, without the scaler's eye
        def loss(self, outputs, batch):
            return super().loss(outputs, batch)

    step, recorder = make(Unmasked, tmp_path, Policy(on_nonfinite="skip"))
    recorder.train_step(step.batch(0))
    scale = recorder.scaler.get_scale()
    with recorder.step(step.batch(1)) as s:
        s.loss(torch.tensor(1.0))
        for parameter in recorder.model.parameters():
            parameter.grad = torch.full_like(parameter, float("inf"))
        assert s.gradients()  # the scaler will skip by itself
        s.update()
    assert s.result.skipped_by == "scaler"
    assert recorder.scaler.get_scale() == scale / 2


def test_continue_updates_all_the_same(tmp_path):
    step, recorder = make(steps.BadGradient, tmp_path, Policy(on_nonfinite="continue"))
    result = recorder.train_step(step.batch(0, bad=True))
    assert result.skipped_by == "none"
    assert result.updated
    assert open_bundle(result.incident).first_bad.stage == "backward"
    assert any(bool(p.isnan().any()) for p in recorder.model.parameters())


def test_a_function_chooses(tmp_path):
    seen = []

    def choose(trip):
        seen.append((trip.stage, trip.first_bad.tensor))
        return "skip"

    step, recorder = make(steps.Cnn, tmp_path, Policy(on_nonfinite=choose))
    assert recorder.train_step(step.batch(0, bad=True)).skipped_by == "gate"
    assert seen == [("loss", "loss.log")]


def test_a_function_that_answers_nonsense_raises(tmp_path):
    step, recorder = make(steps.Cnn, tmp_path, Policy(on_nonfinite=lambda trip: "maybe"))
    with pytest.raises(NonFiniteError, match="returned 'maybe'"):
        recorder.train_step(step.batch(0, bad=True))


def test_the_first_bad_record_is_never_overwritten(tmp_path):
    step, recorder = make(steps.Cnn, tmp_path, Policy(on_nonfinite="skip"))
    recorder.train_step(step.batch(0))
    recorder.train_step(step.batch(1, bad=True))
    recorder.train_step(step.batch(2, bad=True))
    first = (tmp_path / "r.first_bad.json").read_text()
    assert json.loads(first)["first_bad"]["step"] == 1
    number = torch.tensor(3)  # as a checkpoint may have it
    step, resumed = make(steps.Cnn, tmp_path, Policy(on_nonfinite="skip"), first_step=number)
    resumed.train_step(step.batch(3, bad=True))
    assert (tmp_path / "r.first_bad.json").read_text() == first
    assert [record["step"] for record in ledger(tmp_path)] == [0, 1, 2, 3]


def test_the_ledger_window_in_a_bundle_ends_with_its_own_step(tmp_path):
    step, recorder = make(steps.Cnn, tmp_path, Policy(ledger_window=3))
    for k in range(4):
        recorder.train_step(step.batch(k))
    with pytest.raises(NonFiniteError) as raised:
        recorder.train_step(step.batch(4, bad=True))
    records = open_bundle(raised.value.bundle).ledger()
    assert [record["step"] for record in records] == [2, 3, 4]
    assert records[-1]["first_bad_stage"] == "loss"


def test_no_more_bundles_than_allowed(tmp_path):
    policy = Policy(on_nonfinite="skip", max_bundles=2)
    step, recorder = make(steps.Cnn, tmp_path, policy)
    for k in range(4):
        recorder.train_step(step.batch(k, bad=True))
    assert len(find_bundles(tmp_path)) == 2
    assert len(ledger(tmp_path)) == 4


def test_the_heaviest_parts_are_left_out_first(tmp_path):
    class Wide(steps.BadGradient):
        def build_model(self):
            return nn.Sequential(nn.Flatten(), nn.Linear(36, 2000), nn.ReLU(), nn.Linear(2000, 2))

    sizes = {}
    for limit in (10**9, 700_000, 200_000):
        step, recorder = make(Wide, tmp_path / str(limit), Policy(max_bytes=limit))
        recorder.train_step(step.batch(0))
        with pytest.raises(NonFiniteError) as raised:
            recorder.train_step(step.batch(1, bad=True))
        bundle = open_bundle(raised.value.bundle)
        sizes[limit] = set(bundle.files())
        assert bundle.sealed
        assert sum(entry.size for entry in bundle.manifest.files.values()) < limit
        if limit == 700_000:
            assert "gradients.safetensors" in bundle.manifest.dropped
            assert bundle.completeness["backward"] == "complete"
            assert bundle.completeness["update"].startswith("missing optimizer state")
        if limit == 200_000:
            assert bundle.completeness["forward_loss"].startswith("missing parameters")
    assert "state/optimizer.safetensors" in sizes[10**9]
    assert "state/model.safetensors" in sizes[700_000]
    assert "batch.safetensors" in sizes[200_000]


def test_statistics_only_holds_no_values(tmp_path):
    step, recorder = make(steps.BadGradient, tmp_path, Policy(save="statistics"))
    with pytest.raises(NonFiniteError) as raised:
        recorder.train_step(step.batch(0, bad=True))
    bundle = open_bundle(raised.value.bundle)
    tensor_files = {name for name in bundle.files() if name.endswith(".safetensors")}
    assert tensor_files == {"state/rng.safetensors"}
    assert bundle.json("statistics.json")["gradient:0.weight"]["nan"] == 36
    assert bundle.completeness["forward_loss"].startswith("missing parameters")


class Ids(steps.Cnn):
    domains: ClassVar = {"ids": Domain(0, 15, allowed=(-100,)), "x": Domain(finite=True)}

    def build_model(self):
        return nn.Embedding(16, 2)

    def forward(self, model, batch):
        return model(batch["ids"].clamp(0, 15))

    def loss(self, outputs, batch):
        return outputs.pow(2).mean()


def test_domains_warn_or_trip(tmp_path):
    good = {"ids": torch.tensor([[0, 15, -100]]), "x": torch.ones(2)}
    bad = {"ids": torch.tensor([[0, 3], [16, 2]]), "x": torch.ones(2)}
    for name, count in (("warn", 1), ("off", 0)):
        _, recorder = make(Ids, tmp_path / name, Policy(input=name))
        assert recorder.train_step(good).incident is None
        assert recorder.train_step(bad).updated
        records = ledger(tmp_path / name)
        assert len(records[0]["soft_gates"]) == 0
        assert len(records[1]["soft_gates"]) == count
    _, recorder = make(Ids, tmp_path / "trip", Policy(input="trip"))
    recorder.train_step(good)
    with pytest.raises(NonFiniteError) as raised:
        recorder.train_step(bad)
    bundle = open_bundle(raised.value.bundle)
    assert bundle.first_bad.stage == "input"
    assert bundle.first_bad.first == [1, 0]
    message = bundle.first_bad.message
    assert "'ids'" in message
    assert "[1, 0]" in message
    assert "16" in message
    assert bundle.evidence()["input"][0]["field"] == "ids"
    assert torch.equal(read_state(bundle).micro_batches[0]["ids"], bad["ids"])
    with pytest.raises(NonFiniteError):
        recorder.train_step({"ids": good["ids"], "x": torch.tensor([1.0, float("nan")])})

    class Raises(Ids):
        @property
        def domains(self):
            raise OSError("the vocabulary is not there")

    _, recorder = make(Raises, tmp_path / "raises")
    assert recorder.train_step(good).updated, "what only the recorder reads stops no training"
    assert "the vocabulary is not there" in recorder.failures[0]


def test_soft_gates_write_the_ledger_and_trip_nothing(tmp_path):
    class Masked(steps.Cnn):
        def forward(self, model, batch):
            return {"y": model(torch.nan_to_num(batch["x"])), "mask": torch.tensor(-float("inf"))}

        def loss(self, outputs, batch):
            return outputs["y"].pow(2).mean()

    step, recorder = make(Masked, tmp_path)
    batch = step.batch(0)
    batch["x"][0, 0, 0, 0] = float("nan")
    assert recorder.train_step(batch).updated
    (record,) = ledger(tmp_path)
    assert {(s["where"], s["name"]) for s in record["soft_gates"]} == {
        ("batch", "x"), ("outputs", "mask"),
    }  # fmt: skip


def test_usage_errors():
    step = steps.Cnn()
    model, optimizers, _ = steps.build(step)
    with pytest.raises(UsageError, match="neither"):
        Recorder(step, model, optimizers).train_step()
    with pytest.raises(UsageError, match="both"):
        Recorder(step, model, optimizers).train_step(1, [1])
    with pytest.raises(UsageError, match="step=None"):
        Recorder(None, model, optimizers).train_step(step.batch(0))
    with pytest.raises(UsageError, match="no optimizer"):
        Recorder(step, model, [])
    with pytest.raises(UsageError, match="'explode'"):
        Policy(on_nonfinite="explode")
    with pytest.raises(UsageError, match="max_bundles=-1"):
        Policy(max_bundles=-1)
    with pytest.raises(UsageError, match="window=0"):
        Alerts(window=0)


def low(recorder, step, batch, spoil=None):
    with recorder.step(batch) as s:
        outputs = recorder.model(batch["x"])
        loss = step.loss(outputs, batch)
        s.loss(sum(loss.values()), components=loss)
        sum(loss.values()).backward()
        if spoil is not None:
            spoil()
        if s.gradients(max_norm=1.0):
            s.update()
        s.logging(perplexity=float("inf"))
    return s.result


def test_the_low_level_form_records_and_replays(tmp_path):
    from replaying import replay

    step, recorder = make(steps.Cnn, tmp_path)
    assert low(recorder, step, step.batch(0)).updated
    recorder.optimizers[0].zero_grad()
    with pytest.raises(NonFiniteError) as raised:
        low(recorder, step, step.batch(1, bad=True))
    bundle = open_bundle(raised.value.bundle)
    assert bundle.manifest.step_reference.low_level
    assert bundle.first_bad.tensor == "loss.log"
    assert replay(bundle.path, step)["digests"] == bundle.evidence()["digests"]
    assert ledger(tmp_path)[0]["soft_gates"] == [
        {"where": "logging", "name": "perplexity", "value": {"finite": False, "value": "inf"}}
    ]


def test_gradients_returns_false_and_finishes_the_step(tmp_path):
    step, recorder = make(steps.Cnn, tmp_path, Policy(on_nonfinite="skip"))
    before = {n: p.detach().clone() for n, p in recorder.model.named_parameters()}

    def spoil():
        recorder.model[0].weight.grad[0] = float("nan")

    result = low(recorder, step, step.batch(0), spoil)
    assert result.skipped_by == "gate"
    assert open_bundle(result.incident).first_bad.tensor == "gradient:0.weight"
    for name, parameter in recorder.model.named_parameters():
        assert parameter.grad is None
        assert torch.equal(parameter, before[name])
    recorder.optimizers[0].zero_grad()
    assert low(recorder, step, step.batch(1)).updated
    assert recorder.step_index == 2


def test_leaving_without_update_withholds_it_and_says_so(tmp_path):
    step, recorder = make(steps.Cnn, tmp_path)
    with recorder.step(step.batch(0), capture="look") as s:
        recorder.model(step.batch(0)["x"]).sum().backward()
    assert s.result.skipped_by == "gate"
    assert all(p.grad is None for p in recorder.model.parameters())
    assert any("without update()" in note for note in open_bundle(s.result.incident).manifest.notes)


def test_low_level_exceptions_go_on_with_their_stage(tmp_path):
    step, recorder = make(steps.Cnn, tmp_path)
    error = RuntimeError("mine")
    with pytest.raises(RuntimeError) as raised, recorder.step(step.batch(0)) as s:
        s.loss(recorder.model(step.batch(0)["x"]).sum())
        raise error
    assert raised.value is error
    bundle = open_bundle(recorder.bundles[0])
    assert bundle.first_bad.stage == "backward"
    assert str(bundle.path) in error.__notes__[0]


def test_low_level_micro_batches_and_autocast(tmp_path):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recorder = Recorder(None, model, optimizer, None, tmp_path, "r", Policy())
    batches = [torch.randn(2, 4), torch.full((2, 4), float("nan"))]
    with pytest.raises(NonFiniteError) as raised, recorder.step() as s:
        for i, x in enumerate(batches):
            s.micro_batch(i, x)
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(x).float().mean() / 2
            s.loss(loss)
            loss.backward()
    bundle = open_bundle(raised.value.bundle)
    assert bundle.first_bad.micro_step == 1
    assert bundle.conditions.autocast == "bfloat16"
    assert bundle.manifest.step_reference.kind == "none"
    state = read_state(bundle)
    assert torch.equal(state.micro_batches[0], batches[0])
    assert state.micro_batches[1].isnan().all()
    assert set(state.unit_rng) == {("main", 0), ("main", 1)}


def test_original_conditions_are_recorded(tmp_path):
    torch.set_float32_matmul_precision("high")
    try:
        step, recorder = make(steps.Half, tmp_path)
        with pytest.raises(NonFiniteError) as raised:
            recorder.train_step(step.batch(0, bad=True))
    finally:
        torch.set_float32_matmul_precision("highest")
    conditions = open_bundle(raised.value.bundle).conditions
    assert conditions.autocast == "float16"
    assert conditions.matmul_precision == "high"
    assert conditions.scale == 1024.0
    assert conditions.max_grad_norm == 0.5
    assert conditions.threads == torch.get_num_threads()
    assert conditions.deterministic == "off"
