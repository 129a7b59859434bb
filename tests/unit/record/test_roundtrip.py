import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import recorded_steps as steps
from replaying import replay

import workbench
from workbench import NonFiniteError, Policy, Recorder, open_bundle
from workbench.step import load_step

HERE = Path(__file__).parent


def record(kind, directory, policy=None, steps_before=3, **kwargs):
    step = kind()
    model, optimizers, scaler = steps.build(step)
    recorder = Recorder(
        step, model, optimizers, scaler, directory, run_id="r", policy=policy, **kwargs
    )
    for k in range(steps_before):
        result = recorder.train_step(step.batch(k))
        assert result.incident is None
    with pytest.raises(NonFiniteError) as raised:
        recorder.train_step(step.batch(steps_before, bad=True))
    assert recorder.failures == []
    return open_bundle(raised.value.bundle), raised.value


@pytest.mark.parametrize("name", steps.ALL)
def test_a_bundle_replays_bit_for_bit(name, tmp_path):
    bundle, _ = record(steps.ALL[name], tmp_path)
    assert bundle.sealed
    assert {check.status for check in bundle.verify()} == {"ok"}
    here = replay(bundle.path, steps.ALL[name]())
    if name == "Gan":  # gradients of the phase before the one that tripped were not kept
        assert set(here["digests"].pop("gradients")) == {"critic.weight", "critic.bias"}
        assert here["digests"].items() <= bundle.evidence()["digests"].items()
    else:
        assert here["digests"] == bundle.evidence()["digests"]
    assert here["stage"] == bundle.first_bad.stage
    if name == "BadGradient":
        assert here["digests"]["gradients"]
        assert bundle.first_bad.stage == "backward"
    for goal in ("forward_loss", "backward"):
        assert bundle.completeness[goal] == "complete"


def test_a_fresh_process_computes_the_same_bits(tmp_path):
    names = ("BadGradient", "Half", "Lstm")
    bundles = [record(steps.ALL[name], tmp_path / name)[0] for name in names]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[2])])}
    done = subprocess.run(
        [sys.executable, str(HERE / "replaying.py"), *(str(b.path) for b in bundles)],
        capture_output=True, text=True, check=True, env=environment, cwd=tmp_path,
    )  # fmt: skip
    replayed = [one["digests"] for one in json.loads(done.stdout)]
    assert replayed == [bundle.evidence()["digests"] for bundle in bundles]


def test_micro_batches_are_replayed_with_their_own_random_states(tmp_path):
    step = steps.Cnn()
    model, optimizers, scaler = steps.build(step)
    recorder = Recorder(step, model, optimizers, scaler, tmp_path, run_id="r")
    recorder.train_step(micro_batches=[step.batch(0), step.batch(1)])
    with pytest.raises(NonFiniteError) as raised:
        recorder.train_step(micro_batches=[step.batch(2), step.batch(3, bad=True), step.batch(4)])
    bundle = open_bundle(raised.value.bundle)
    assert bundle.first_bad.micro_step == 1
    assert replay(bundle.path, step)["digests"] == bundle.evidence()["digests"]


def test_what_shows_after_the_update_replays_with_recovery_every_1(tmp_path):
    class Divergent(steps.Cnn):
        def update(self, model, optimizer, scaler):
            super().update(model, optimizer, scaler)
            if self.step_index == 2:
                model[0].weight.data[0, 0, 0, 0] = float("inf")

    for every, complete in ((1, True), (0, False)):
        step = Divergent()
        model, optimizers, scaler = steps.build(step)
        policy = Policy(recovery_every=every)
        recorder = Recorder(step, model, optimizers, scaler, tmp_path / str(every), "r", policy)
        with pytest.raises(NonFiniteError) as raised:
            for k in range(3):
                recorder.train_step(step.batch(k))
        bundle = open_bundle(raised.value.bundle)
        assert bundle.first_bad.stage == "after_update"
        assert bundle.first_bad.tensor == "parameter:0.weight"
        if complete:
            assert bundle.completeness["update"] == "complete"
            assert bundle.evidence()["digests"]["gradients"]
            assert replay(bundle.path, Divergent())["digests"] == bundle.evidence()["digests"]
        else:
            assert bundle.completeness["update"].startswith("missing pre-step parameters")
            assert not bundle.has("state/model.json")


def test_earlier_steps_are_in_the_trajectory_and_replay(tmp_path):
    from workbench.step import StepRunner, read_state, restore_state
    from workbench.step.digests import loss_bits

    bundle, _ = record(steps.Cnn, tmp_path, Policy(recovery_every=1))
    index = bundle.json("trajectory/index.json")["steps"]
    assert [one["step"] for one in index] == [0, 1, 2]
    assert bundle.completeness["trajectory"] == "complete"
    for one in index:
        state = read_state(bundle, one["prefix"])
        step = steps.Cnn()
        model, optimizers, scaler = steps.build(step, seed=9)
        restore_state(state, model, optimizers, scaler)
        runner = StepRunner(step, model, optimizers, scaler)
        runner.begin(state.micro_batches, state.step_index)
        while runner.next_unit is not None:
            runner.advance()
        assert loss_bits(runner.loss_value) == one["loss_bits"]


def test_recovery_points_lie_every_few_steps(tmp_path):
    bundle, _ = record(steps.Cnn, tmp_path, Policy(recovery_every=2), steps_before=4)
    index = bundle.json("trajectory/index.json")["steps"]
    assert [one["recovery_point"] for one in index] == [True, False, True, False]
    assert not bundle.has("trajectory/step00000001/state/model.json")
    assert bundle.has("trajectory/step00000001/batch.json")


def test_a_captured_step_replays_to_its_end(tmp_path):
    step = steps.Half()
    model, optimizers, scaler = steps.build(step)
    recorder = Recorder(step, model, optimizers, scaler, tmp_path, run_id="r")
    recorder.train_step(step.batch(0))
    result = recorder.train_step(step.batch(1), capture="a look")
    bundle = open_bundle(result.incident)
    assert bundle.kind == "captured"
    assert bundle.first_bad is None
    assert bundle.evidence()["reason"] == "a look"
    assert bundle.evidence()["stopped_at"] is None
    here = replay(bundle.path, step)
    assert here["digests"] == bundle.evidence()["digests"]
    assert here["digests"]["gradients"]
    assert bundle.completeness["update"] == "complete"


def test_an_exception_of_the_users_code_is_the_same_object_with_a_note(tmp_path):
    class Raises(steps.Cnn):
        error = ValueError("logging broke")

        def log(self, loss, outputs, model):
            if self.step_index == 1:
                raise self.error

    step = Raises()
    model, optimizers, scaler = steps.build(step)
    recorder = Recorder(step, model, optimizers, scaler, tmp_path, "r", Policy(recovery_every=1))
    recorder.train_step(step.batch(0))
    with pytest.raises(ValueError, match="logging broke") as raised:
        recorder.train_step(step.batch(1))
    assert raised.value is Raises.error
    (bundle_path,) = recorder.bundles
    assert str(bundle_path) in raised.value.__notes__[0]
    bundle = open_bundle(bundle_path)
    assert bundle.first_bad.stage == "logging"
    assert bundle.first_bad.kind == "exception"
    assert bundle.evidence()["exception"]["message"] == "logging broke"


def test_the_text_has_five_lines_the_bundle_and_two_commands(tmp_path):
    bundle, error = record(steps.Cnn, tmp_path)
    lines = str(error).splitlines()
    assert lines[0].startswith("✕ The loss")
    assert [line.split()[0] for line in lines[1:5]] == ["Why", "Sure?", "Reach", "Resume"]
    assert str(bundle.path) in lines[5]
    assert lines[6].strip() == f"workbench diagnose {bundle.path} --step recorded_steps:Cnn"
    assert lines[7].strip() == f"workbench open {bundle.path}"
    assert isinstance(error, FloatingPointError)
    assert isinstance(error, workbench.NonFiniteError)


def test_the_reference_in_the_bundle_needs_trust(tmp_path):
    bundle, _ = record(steps.Cnn, tmp_path)
    assert bundle.manifest.step_reference.reference == "recorded_steps:Cnn"
    with pytest.raises(workbench.errors.CannotRunError, match="--trust import"):
        load_step(bundle)
    assert isinstance(load_step(bundle, trust="import"), steps.Cnn)
    assert type(load_step(bundle, trust="source")).__name__ == "Cnn"
    assert bundle.text(bundle.manifest.step_reference.source) == Path(steps.__file__).read_text()
