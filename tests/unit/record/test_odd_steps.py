"""What is rare must neither stop training nor cost the rest of the evidence."""

import json
import resource
import shutil
import signal

import odd_steps as steps
import pytest
import torch

from workbench import Policy, Recorder, Replay, TrainingStep, open_bundle
from workbench.checkpoints.ledgers import clean_steps_of
from workbench.evidence.records import Missing
from workbench.record.ledger import Ledger
from workbench.step import read_state
from workbench.step.snapshots import snapshot_tree


def record(kind, directory, **policy):
    step = kind()
    model = step.build_model()
    optimizer = step.build_optimizer(model)
    policy = Policy(on_nonfinite="continue", **policy)
    recorder = Recorder(step, model, optimizer, directory=directory, run_id="r", policy=policy)
    results = [recorder.train_step(step.batch(k, bad=k == 2)) for k in range(3)]
    assert recorder.failures == []
    return recorder, results


@pytest.mark.parametrize(
    "kind",
    [steps.OwnClasses, steps.Sequences, steps.Odd, steps.Lazy, steps.LossPerSample, steps.Plain],
)
@pytest.mark.parametrize("every", [0, 1])
def test_an_odd_step_is_recorded_and_replays_bit_for_bit(tmp_path, kind, every):
    _, results = record(kind, tmp_path, recovery_every=every)
    assert results[1].updated and results[1].incident is None
    assert Replay(results[2].incident, step=kind()).verdict().verdict == "bitwise"


def test_a_loss_that_is_no_number_is_recorded_as_none_and_training_goes_on(tmp_path):
    recorder, results = record(steps.LossPerSample, tmp_path)
    assert [r.loss for r in results] == [None] * 3
    lines = (tmp_path / "r.ledger.jsonl").read_text().splitlines()
    assert [json.loads(line)["loss"] for line in lines] == [None] * 3
    assert recorder.first_bad.tensor == "loss"


def test_what_cannot_be_stored_costs_only_itself(tmp_path):
    _, results = record(steps.Unstorable, tmp_path)
    bundle = open_bundle(results[2].incident)
    assert bundle.completeness["forward_loss"].startswith("missing parts of the batch")
    (batch,) = read_state(bundle).micro_batches
    assert torch.equal(batch["x"], steps.Plain().batch(2)["x"])
    assert isinstance(batch["nested"], Missing)
    assert isinstance(batch["self"], Missing)


def test_a_lazy_parameter_without_a_shape_does_not_switch_gates_off(tmp_path):
    _, results = record(steps.NeverUsed, tmp_path)
    bundle = open_bundle(results[2].incident)
    assert bundle.completeness["forward_loss"] == "complete"
    assert "ghost" not in read_state(bundle).model.tensors


def test_an_exception_without_a_text_is_raised_unchanged(tmp_path):
    with pytest.raises(steps.SilentError) as caught:
        record(steps.Raises, tmp_path)
    assert any("evidence of this step" in note for note in caught.value.__notes__)
    (bundle,) = tmp_path.glob("*.bundle")
    assert "SilentError" in open_bundle(bundle).first_bad.message


def test_an_exception_that_takes_no_notes_is_raised_unchanged(tmp_path):
    class OddError(Exception):
        __notes__ = ("kept as a tuple",)

    class RaisesIt(steps.Plain):
        def forward(self, model, batch):
            raise OddError("the user's own")

    with pytest.raises(OddError, match="the user's own"):
        record(RaisesIt, tmp_path)
    assert len([*tmp_path.glob("*.bundle")]) == 1


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.RMSprop])
def test_a_complex_parameter_does_not_switch_the_gate_after_the_update_off(tmp_path, optimizer):
    class Wave(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3, 3, dtype=torch.complex64))

        def forward(self, x):
            return x.to(torch.complex64)[:, 1:] @ self.weight[1:]

    class Spoils(optimizer):
        def step(self, closure=None):
            super().step(closure)
            with torch.no_grad():
                self.param_groups[0]["params"][0][0, 0] = complex(0.0, float("nan"))

    class WaveStep(TrainingStep):
        def build_model(self):
            return Wave()

        def build_optimizer(self, model):
            return Spoils(model.parameters(), 0.1)

        def forward(self, model, batch):
            return model(batch)

        def loss(self, outputs, batch):
            return outputs.abs().pow(2).mean()

    step = WaveStep()
    model = step.build_model()
    policy = Policy(on_nonfinite="continue")
    recorder = Recorder(step, model, step.build_optimizer(model), directory=tmp_path, policy=policy)
    recorder.train_step(torch.ones(2, 3))
    assert recorder.failures == []
    assert recorder.first_bad.stage == "after_update"
    assert recorder.first_bad.tensor == "parameter:weight"


def test_a_snapshot_of_a_named_tuple_keeps_its_class():
    pair = steps.Pair(torch.ones(2), torch.zeros(2))
    kept = snapshot_tree([pair])[0]
    assert type(kept) is steps.Pair
    assert torch.equal(kept.product(), torch.zeros(2))


def test_a_ledger_that_was_removed_is_written_anew(tmp_path):
    ledger = Ledger(tmp_path / "runs", "r", 5)
    ledger.append({"step": 0})
    shutil.rmtree(ledger.path.parent)
    ledger.append({"step": 1})
    assert [json.loads(line) for line in ledger.path.read_text().splitlines()] == [{"step": 1}]


def test_half_a_line_left_by_a_killed_run_does_not_spoil_the_next(tmp_path):
    (tmp_path / "r.ledger.jsonl").write_text('{"step":0}\n{"st')
    ledger = Ledger(tmp_path, "r", 5)
    ledger.append({"step": 1})
    assert ledger.path.read_text().splitlines()[-1] == '{"step":1}'


def test_a_bundle_that_the_disk_cut_short_is_named_and_says_it_is_unsealed(tmp_path, monkeypatch):
    from workbench.evidence.writer import BundleWriter

    whole = BundleWriter.add_pytree

    def full(self, stem, tree):
        if stem == "state/model":
            raise OSError(28, "No space left on device")
        return whole(self, stem, tree)

    monkeypatch.setattr(BundleWriter, "add_pytree", full)
    step = steps.Plain()
    model = step.build_model()
    policy = Policy(on_nonfinite="continue")
    recorder = Recorder(step, model, step.build_optimizer(model), directory=tmp_path, policy=policy)
    result = recorder.train_step(step.batch(0, bad=True))
    bundle = open_bundle(result.incident)
    assert not bundle.sealed
    assert bundle.completeness["forward_loss"] != "complete"
    assert any("No space left" in failure for failure in recorder.failures)


def test_a_full_ledger_becomes_the_part_before_and_no_record_is_lost_on_the_way(tmp_path):
    one, two = (Ledger(tmp_path, "r", 5, max_bytes=400) for _ in range(2))  # two runs of one name
    for step in range(30):
        (one, two)[step % 2].append({"step": step})
    before = tmp_path / "r.ledger.1.jsonl"
    assert before.stat().st_size + one.path.stat().st_size <= 400
    text = before.read_text() + one.path.read_text()
    steps = [json.loads(line)["step"] for line in text.splitlines()]
    assert steps == list(range(steps[0], 30))
    assert len(steps) >= 14
    assert clean_steps_of(one.path).last_step == 29


def test_an_incident_in_the_part_before_is_not_forgotten(tmp_path):
    ledger = Ledger(tmp_path, "r", 5, max_bytes=100)
    ledger.append({"step": 3, "first_bad_stage": "loss"})
    ledger.append({"step": 4, "note": "x" * 40})
    assert "first_bad" not in ledger.path.read_text()
    assert clean_steps_of(tmp_path).last_incident == 3


def test_a_full_disk_is_an_error_and_half_a_line_does_not_spoil_the_next(tmp_path):
    ledger = Ledger(tmp_path, "r", 5)
    ledger.append({"step": 0})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
        with pytest.raises(OSError):
            ledger.append({"step": 1, "text": "x" * 40})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    ledger.append({"step": 2})
    lines = ledger.path.read_text().splitlines()
    assert (lines[0], lines[-1], len(lines)) == ('{"step":0}', '{"step":2}', 3)
