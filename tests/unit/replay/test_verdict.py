import copy

import pytest
import torch

from tests.unit.replay import steps
from tests.unit.replay.steps import record, write_bundle
from workbench.evidence.schema import FirstBad
from workbench.replay import Replay
from workbench.step.protocol import Domain
from workbench.step.rng import RngState

pytestmark = pytest.mark.usefixtures("random_numbers_stay")


def verdict_of(source):
    return Replay.from_source(source).verdict()


def test_bitwise():
    found = verdict_of(record(steps.LogOfSoftmax()))
    assert found.verdict == "bitwise"
    assert found.deterministic_here is True
    assert found.survives_instrumentation is None
    assert found.differences == []
    assert found.sentence == "Replayed exactly: same loss bits, same non-finite values."


@pytest.mark.parametrize("what", ["gradients", "rng"])
def test_one_digest_that_differs_makes_it_same_mask(what):
    source = record(steps.SqrtAtZero())
    digests = copy.deepcopy(source.evidence["digests"])
    if what == "gradients":
        digests["gradients"]["0.weight"] = "0" * 64
    else:
        digests["rng"] = "0" * 64
    source.evidence = source.evidence | {"digests": digests}
    found = verdict_of(source)
    assert found.verdict == "same_mask"
    assert found.distance == 0.0  # the loss, recorded and replayed, is the same
    assert len(found.differences) == 1


def test_the_distance_is_measured_where_both_are_finite():
    source = record(steps.SqrtAtZero())
    digests = source.evidence["digests"] | {"loss_bits": "float32:00000000"}
    loss = source.evidence["loss"] * (1 + 1e-3)
    source.evidence = source.evidence | {"digests": digests, "loss": loss}
    found = verdict_of(source)
    assert found.verdict == "same_mask"
    assert found.distance == pytest.approx(1e-3, rel=0.01)
    assert "differ by at most" in found.sentence


def test_kept_gradients_are_compared_too(tmp_path, monkeypatch):
    source = record(steps.Plain())
    gradients = Replay.from_source(source)
    gradients.run(until="unscale", keep_gradients=True)
    kept = gradients.session.observed.gate_gradients
    kept["0.bias"] = kept["0.bias"] * 1.01
    monkeypatch.setattr(source, "gradients", lambda: kept)
    digests = source.evidence["digests"]
    source.evidence = source.evidence | {
        "digests": digests | {"gradients": digests["gradients"] | {"0.bias": "0" * 64}}
    }
    found = verdict_of(source)
    assert found.verdict == "same_mask"
    assert found.distance == pytest.approx(0.01, rel=0.05)


def test_other_positions_are_same_class():
    source = record(steps.LogOfSoftmax())
    digests = source.evidence["digests"] | {"masks": {"loss": "0" * 64}}
    source.evidence = source.evidence | {"digests": digests}
    assert verdict_of(source).verdict == "same_class"


def test_another_kind_in_the_same_tensor_is_not_reproduced():
    source = record(steps.LogOfSoftmax())
    digests = source.evidence["digests"] | {"masks": {"loss": "0" * 64}}
    source.evidence = source.evidence | {"digests": digests}
    source.first_bad = FirstBad(
        run_id="r", step=3, stage="loss", tensor="loss", sink="loss",
        counts={"nan": 0, "pos_inf": 1, "neg_inf": 0, "finite": 0},
    )  # fmt: skip
    assert verdict_of(source).verdict == "not_reproduced"


def test_without_digests_the_kind_is_all_there_is_to_compare():
    source = record(steps.LogOfSoftmax())
    source.evidence = {}
    assert verdict_of(source).verdict == "same_class"


def test_not_reproduced_names_what_differs():
    source = record(steps.LogOfSoftmax())
    source.state.micro_batches[0]["sharpness"] = torch.tensor(1.0)
    source.recorded = source.recorded.replace(device="cuda:0")
    found = verdict_of(source)
    assert found.verdict == "not_reproduced"
    assert found.rows[0] == {"field": "device", "recorded": "cuda:0", "here": "cpu"}
    assert found.sentence.startswith(
        "Did not fail here. That does not clear the step: device differs (recorded cuda:0, here cpu"
    )
    assert "nothing became non-finite" in found.differences


def test_a_cuda_generator_cannot_be_continued_on_a_cpu():
    source = record(steps.LogOfSoftmax())
    source.recorded = source.recorded.replace(device="cuda:0")
    rng = source.state.rng
    source.state.rng = RngState(rng.python, rng.numpy, rng.cpu, {0: torch.zeros(16).byte()})
    if not torch.cuda.is_available():
        assert any("CUDA generator" in text for text in verdict_of(source).differences)


def test_the_environment_is_compared_field_by_field():
    source = record(steps.LogOfSoftmax())
    source.environment = {"python": "2.7.18", "cpu": {"capability": "NONE"}}
    found = verdict_of(source)
    fields = {row["field"] for row in found.rows}
    assert {"python", "cpu.capability"} <= fields
    assert found.verdict == "bitwise"  # what differs did not matter, and is said all the same
    assert ". With other instructions of the CPU: recorded NONE, here " in found.sentence


def test_an_environment_recorded_here_differs_in_nothing(tmp_path):
    path = write_bundle(tmp_path, record(steps.LogOfSoftmax()))
    assert Replay(path, step=steps.LogOfSoftmax()).verdict().differences == []


def test_a_missing_state_is_unverifiable():
    source = record(steps.LogOfSoftmax())
    source.completeness = {"forward_loss": "missing parameters: max_bytes"}
    found = verdict_of(source)
    assert found.verdict == "unverifiable"
    assert found.sentence == "Cannot be checked here: missing parameters: max_bytes."


def test_a_step_that_differs_from_itself_is_never_bitwise():
    class Unsteady(steps.LogOfSoftmax):
        def loss(self, outputs, batch):
            self.log_calls = getattr(type(self), "calls", 0)
            type(self).calls = self.log_calls + 1
            return super().loss(outputs + 0.0, batch)

        def forward(self, model, batch):
            # a counter outside the step object, which no state restores
            if getattr(type(self), "calls", 0) > 1:
                torch.rand(1)
            return super().forward(model, batch)

    found = verdict_of(record(Unsteady()))
    assert found.deterministic_here is False
    assert found.verdict == "same_mask"
    assert found.differences[0].startswith("two runs here differ")


def finite_alert(loss=None):
    source = record(steps.Plain())
    source.kind = "alert"
    source.first_bad = FirstBad(
        run_id="r", step=3, stage="loss", tensor="loss", sink="alert", kind="alert",
        message="The loss 9.1 is 4 times its usual 2.3.",
    )  # fmt: skip
    if loss is not None:
        digests = source.evidence["digests"] | {"loss_bits": "float32:00000000"}
        recorded = source.evidence["loss"] * loss
        source.evidence = source.evidence | {"digests": digests, "loss": recorded}
    return source


def test_alerts():
    assert verdict_of(finite_alert()).verdict == "bitwise"
    close = verdict_of(finite_alert(1 + 1e-6))
    assert close.verdict == "same_alert"
    assert close.sentence == "Replayed: the same alert, all values finite."
    assert verdict_of(finite_alert(2.0)).verdict == "not_reproduced"


def test_an_alert_is_shown_at_its_stage():
    replay = Replay.from_source(finite_alert())
    replay.run()
    assert replay.stages[2].status == "alert"
    assert "9.1" in replay.stages[2].sentence


def test_the_verdict_leaves_the_open_session_where_it_was():
    replay = Replay.from_source(record(steps.LogOfSoftmax()))
    replay.forward()
    session = replay.session
    replay.verdict()
    assert replay.session is session
    assert replay.loss().status == "bad"


def test_a_batch_outside_its_domain_trips_at_input():
    step = steps.Plain()
    step.domains = {"y": Domain(0, 1)}
    source = record(step)
    source.kind = "nonfinite"
    source.first_bad = FirstBad(
        run_id="r", step=3, stage="input", tensor="input:y", sink="input", kind="domain",
        message="The batch field 'y' …",
    )  # fmt: skip
    source.evidence = {
        "digests": {"loss_bits": None, "gradients": {}, "masks": {}, "rng": None},
        "stopped_at": "input",
    }
    replay = Replay.from_source(source)
    result = replay.run()
    assert result.until == "input"
    assert result.first_bad["tensor"] == "input:y"
    assert result.verdict == "bitwise"
