import pytest
import torch
from torch import nn

from tests.unit.replay import steps
from tests.unit.replay.steps import batch, record, write_bundle
from workbench.errors import CannotRunError, UsageError
from workbench.evidence.conditions import Conditions
from workbench.numerics import jsonio
from workbench.replay import Replay
from workbench.step.protocol import Autocast
from workbench.step.stages import STAGES

pytestmark = pytest.mark.usefixtures("random_numbers_stay")


def replay_of(step, **options):
    return Replay.from_source(record(step, **options))


def statuses(replay):
    return {state.stage: state.status for state in replay.stages}


def test_a_finite_step_replays_bit_for_bit_to_its_end():
    events: list = []
    result = Replay.from_source(record(steps.Plain()), progress=events.append).run()
    # whoever listens learns of every stage that it began and how it ended
    begun = {one["stage"] for one in events if one["event"] == "stage_begun"}
    ended = {one["stage"]: one["status"] for one in events if one["event"] == "stage_done"}
    assert begun == set(STAGES) and ended == dict.fromkeys(STAGES, "clean")
    assert result.verdict == "bitwise"
    assert result.first_bad is None
    assert {state.status for state in result.stages} == {"clean"}
    assert not result.diagnostic


def test_a_run_stops_where_the_record_stopped_and_can_be_stepped_on():
    replay = replay_of(steps.LogOfSoftmax())
    result = replay.run()
    assert result.until == "loss"
    assert result.first_bad["tensor"] == "loss"
    assert result.stages[2].sentence == "loss: 1 NaN of 1."
    assert statuses(replay)["backward"] == "not_run"
    assert replay.backward().status == "bad"
    assert replay.after_update().tensor.startswith("parameter:")
    assert replay.logging().status == "clean"


def test_gradients_are_gated_under_backwards_name():
    result = replay_of(steps.SqrtAtZero()).run()
    assert result.first_bad["stage"] == "backward"
    assert result.verdict == "bitwise"
    assert all(name.startswith("gradient:") for name in result.masks)


def test_every_run_starts_from_the_sealed_state():
    replay = replay_of(steps.Plain())
    first, second = replay.run(), replay.run()
    assert first.loss_bits == second.loss_bits
    assert first.gradients == second.gradients


def test_stage_by_stage_gives_what_a_run_gives():
    stepped, at_once = replay_of(steps.Scaled()), replay_of(steps.Scaled())
    while stepped.session is None or stepped.session.runner.next_unit is not None:
        stepped.advance()
    ran = at_once.run()
    assert stepped.result().loss_bits == ran.loss_bits
    assert stepped.result().gradients == ran.gradients
    assert stepped.result().rng == ran.rng
    with pytest.raises(UsageError, match="nothing left to run"):
        stepped.advance()


def test_back_goes_one_stage_back_and_reset_to_the_start():
    replay = replay_of(steps.Plain())
    replay.backward()
    before = replay.result().gradients
    replay.unscale()
    assert replay.back().stage == "backward"
    assert replay.result().gradients == before
    assert replay.back().stage == "loss"
    replay.reset()
    assert set(statuses(replay).values()) == {"not_run"}
    assert replay.back() is None


def test_micro_batches_are_stepped_one_by_one():
    batches = [batch(), batch(2)]
    replay = replay_of(steps.Plain(), batches=batches)
    replay.forward()
    assert len(replay.session.outcomes) == 2
    replay.forward()
    assert replay.session.outcomes[-1].unit.micro_step == 1
    assert replay.run().verdict == "bitwise"


def test_the_failing_micro_batch_is_where_the_run_stops():
    good = batch()
    good["sharpness"] = torch.tensor(1.0)
    result = replay_of(steps.LogOfSoftmax(), batches=[good, batch()]).run()
    assert result.first_bad["micro_step"] == 1
    assert result.verdict == "bitwise"


class TwoPhases(steps.Plain):
    phases = ("critic", "generator")

    def build_optimizer(self, model):
        return [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (model[0], model[2])]

    def forward(self, model, batch, phase):
        return model(batch["x"]) * (1.0 if phase == "critic" else 2.0)

    def loss(self, outputs, batch, phase):
        return super().loss(outputs, batch)

    def update(self, model, optimizer, scaler, phase):
        super().update(model, optimizer, scaler)


def test_phases_replay_in_turn():
    result = replay_of(TwoPhases()).run()
    assert result.verdict == "bitwise"


class Raises(steps.Plain):
    def loss(self, outputs, batch):
        raise ValueError("no such label")


def test_an_exception_of_the_step_is_a_sink_and_ends_it():
    replay = replay_of(Raises())
    result = replay.run(until="update")
    assert result.first_bad["tensor"] == "exception:ValueError"
    assert result.stages[2].sentence == "ValueError: no such label"
    assert result.stages[3].status == "not_run"
    assert result.verdict == "bitwise"


class WritesIntoItsBatch(steps.Plain):
    def forward(self, model, batch):
        batch["x"].mul_(2.0)
        return super().forward(model, batch)


def test_the_recorded_batch_is_never_written():
    replay = replay_of(WritesIntoItsBatch())
    assert replay.run().loss_bits == replay.run().loss_bits


def test_a_scalers_skip_is_no_failure():
    class Overflows(steps.Scaled):
        def build_scaler(self):
            return torch.amp.GradScaler("cpu", init_scale=2.0**127)

        def loss(self, outputs, batch):
            return 100.0 * super().loss(outputs, batch)

    source = record(Overflows())
    result = Replay.from_source(source).run()
    assert result.stages[5].status == "skip"
    assert result.first_bad is None
    plain = result.to_data()["stages"][5]
    assert (plain["status"], plain["scaler_skip"]) == ("clean", True)
    assert "The update was skipped." in result.stages[7].sentence


# -- conditions -------------------------------------------------------------------------------


def test_a_diagnostic_run_says_what_changed_and_reads_it_back():
    replay = replay_of(steps.LogOfSoftmax())
    conditions = replay.original.replace(dtype="float64", threads=1, max_grad_norm=0.5)
    result = replay.run(conditions=conditions)
    assert result.diagnostic
    assert result.verdict is None
    assert result.changed["dtype"] == "float64"
    assert result.read_back["dtype"] == "float64"
    assert result.read_back["threads"] == 1
    assert [entry["key"] for entry in result.without_effect] == ["max_grad_norm"]


def test_a_run_that_is_finite_at_the_recorded_stop_goes_on():
    replay = replay_of(steps.LogOfSoftmax())
    tame = replay.source.state.micro_batches[0]["soft"]
    assert tame.shape[0] == 4
    replay.source.state.micro_batches[0]["sharpness"] = torch.tensor(1.0)
    result = replay.run()
    assert result.until == "logging"
    assert result.verdict == "not_reproduced"


def test_autocast_is_switched_on_and_off():
    class Mixed(steps.Plain):
        autocast = Autocast(torch.bfloat16, device_type="cpu")

    replay = replay_of(Mixed(), autocast="bfloat16")
    assert replay.run(until="forward").read_back["autocast"] == "bfloat16"
    outputs = replay.session.runner.values.outputs[0]
    assert outputs.dtype == torch.bfloat16
    replay.run(until="forward", conditions=replay.original.replace(autocast="off"))
    assert replay.session.runner.values.outputs[0].dtype == torch.float32
    plain = replay_of(steps.Plain())
    plain.run(until="forward", conditions=plain.original.replace(autocast="float16"))
    assert plain.session.runner.values.outputs[0].dtype == torch.float16


def test_samples_are_kept():
    replay = replay_of(steps.Plain())
    replay.run(until="forward", conditions=replay.original.replace(keep_samples="0,2"))
    assert replay.session.runner.values.outputs[0].shape == (2, 3)


def test_clipping_before_unscaling_sees_scaled_gradients():
    replay = replay_of(steps.Scaled())
    replay.run(until="clip")
    after = float(replay.session.runner.values.grad_norm)
    replay.run(until="clip", conditions=replay.original.replace(clip_before_unscale="on"))
    before = float(replay.session.runner.values.grad_norm)
    assert before == pytest.approx(after * 1024.0, rel=1e-4)


def test_the_order_of_a_loop_that_clips_scaled_gradients_is_exchanged_too():
    class Forgets(steps.Scaled):
        def unscale(self, optimizers, scaler):
            """This loop clips before it unscales."""

    replay = replay_of(Forgets())
    replay.run(until="clip")
    scaled = float(replay.session.runner.values.grad_norm)
    replay.run(until="clip", conditions=replay.original.replace(clip_before_unscale="on"))
    unscaled = float(replay.session.runner.values.grad_norm)
    assert scaled == pytest.approx(unscaled * 1024.0, rel=1e-4)

    class Does(steps.Scaled):
        def unscale(self, optimizers, scaler):
            super().unscale(optimizers, scaler)

    replay = replay_of(Does())
    replay.run(until="clip", conditions=replay.original.replace(clip_before_unscale="on"))
    assert float(replay.session.runner.values.grad_norm) == pytest.approx(scaled, rel=1e-4)
    norms = [p.grad.norm() for p in replay.session.runner.model.parameters()]
    assert float(torch.stack(norms).norm()) <= 1.1 / 1024.0


def test_the_threshold_is_the_steps_own_again_afterwards():
    step = steps.Scaled()
    replay = replay_of(step)
    replay.run(until="clip", conditions=replay.original.replace(max_grad_norm=1e-6))
    norms = [p.grad.norm() for p in replay.session.runner.model.parameters()]
    assert float(torch.stack(norms).norm()) <= 1.1e-6
    assert "max_grad_norm" not in vars(step)


def test_a_reseeded_run_draws_other_numbers_and_the_same_ones_again():
    replay = replay_of(steps.Plain())
    original = replay.run().loss_bits
    conditions = replay.original.replace(rng=5)
    first, second = (replay.run(conditions=conditions).loss_bits for _ in range(2))
    assert first == second != original


def test_every_condition_can_be_set():
    changes = {
        "autocast": "bfloat16", "autocast_cache": "off", "dtype": "float32",
        "matmul_precision": "high", "matmul_tf32": "on", "cudnn": "off", "cudnn_tf32": "off",
        "cudnn_benchmark": "on", "cudnn_deterministic": "on", "deterministic": "on",
        "fill_uninitialized_memory": "off", "sdpa": "math", "compile": "eager",
        "compile_dynamic": "on", "anomaly": "on", "scale": 8.0, "max_grad_norm": 1.0,
        "clip_before_unscale": "on", "mode": "eval", "rng": 1, "threads": 1,
        "optimizer": "foreach", "keep_samples": "0", "float32_modules": "0",
    }  # fmt: skip
    assert set(changes) == set(Conditions.__struct_fields__) - {"device"}
    replay = replay_of(steps.Scaled())
    for key, value in changes.items():
        result = replay.run(conditions=replay.original.replace(**{key: value}))
        assert result.first_bad is None, key
        assert jsonio.loads(result.to_json())["schema"] == "workbench.replay/1"


def test_a_compiled_run_is_compiled():
    replay = replay_of(steps.Plain())
    result = replay.run(conditions=replay.original.replace(compile="aot_eager"))
    assert result.read_back["compile"] == "aot_eager"
    assert replay.session.runner.model._compiled_call_impl is not None
    assert result.loss is not None


# -- what is missing --------------------------------------------------------------------------


class Compiled(steps.Plain):
    def build_model(self):
        return torch.compile(super().build_model(), backend="eager")


def test_a_recorded_compiled_model_is_compiled_and_can_be_run_eagerly():
    replay = replay_of(Compiled(), compile="eager")
    assert replay.run().verdict == "bitwise"
    assert replay.result().read_back["compile"] == "eager"
    result = replay.run(conditions=replay.original.replace(compile="off"))
    assert result.read_back["compile"] == "off"


def test_a_run_without_conditions_is_original_again():
    replay = replay_of(steps.Plain())
    assert replay.run(conditions=replay.original.replace(dtype="float64")).diagnostic
    assert not replay.run().diagnostic


def test_a_missing_optimizer_state_leaves_the_stages_before_it():
    source = record(steps.Plain())
    source.completeness = source.completeness | {"update": "missing optimizer state: max_bytes"}
    replay = Replay.from_source(source)
    result = replay.run()
    assert result.until == "clip"
    update = result.stages[STAGES.index("update")]
    assert (update.status, update.reason) == ("unavailable", "missing optimizer state: max_bytes")
    assert update.sentence == "update: not available. Missing optimizer state: max_bytes."
    with pytest.raises(CannotRunError, match="max_bytes"):
        replay.update()


def test_without_a_batch_nothing_runs():
    source = record(steps.Plain())
    source.state.micro_batches = []
    replay = Replay.from_source(source)
    assert set(statuses(replay).values()) == {"unavailable"}
    with pytest.raises(CannotRunError, match="no batch"):
        replay.run()


def test_a_device_that_is_not_here_is_refused_with_those_that_are():
    source = record(steps.Plain())
    with pytest.raises(CannotRunError, match=r"'xpu:3'.*Devices here: cpu"):
        Replay.from_source(source, conditions=source.recorded.replace(device="xpu:3"))


class OnCuda(steps.Scaled):
    autocast = Autocast(torch.float16, device_type="cuda")

    def build_scaler(self):
        return torch.amp.GradScaler("cuda", init_scale=1024.0)

    def loss(self, outputs, batch):
        self.dtypes = outputs.dtype, torch.softmax(outputs, -1).dtype
        return super().loss(outputs, batch)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_cuda_step_replays_on_the_cpu_under_cudas_rules():
    source = record(steps.Scaled())
    source.step = OnCuda()
    source.recorded = source.recorded.replace(device="cuda:0", autocast="float16")
    source.state.scaler.attributes["_device"] = "cuda"
    source.evidence = {}
    replay = Replay.from_source(source)
    result = replay.run()
    assert source.step.dtypes == (torch.float16, torch.float32)
    assert result.changed == {"device": "cpu", "autocast": "cuda-policy"}
    assert result.read_back["autocast"] == "cuda-policy"
    assert result.notes == [
        "Recorded on CUDA; replaying on CPU under CUDA's autocast rules. Kernels differ."
    ]
    assert replay.session.runner.scaler.is_enabled()
    assert result.stages[7].sentence == "The optimizer updated the parameters."


def test_code_that_cannot_be_built_is_said_in_one_paragraph():
    class Broken(steps.Plain):
        def build_optimizer(self, model):
            raise KeyError("learning_rate")

    source = record(steps.Plain())
    source.step = Broken()
    with pytest.raises(CannotRunError, match=r"'Broken' could not be built: KeyError"):
        Replay.from_source(source).run()


def test_a_stage_that_does_not_exist_is_refused():
    with pytest.raises(UsageError, match="no stage 'fwd'"):
        replay_of(steps.Plain()).run(until="fwd")


# -- bundles and traces -----------------------------------------------------------------------


def test_a_bundle_replays_bitwise_and_opening_it_runs_nothing(tmp_path):
    path = write_bundle(tmp_path, record(steps.LogOfSoftmax()), "nowhere:Step", "module")
    with pytest.raises(CannotRunError, match="nowhere:Step"):
        Replay(path)
    replay = Replay(path, step=steps.LogOfSoftmax)
    assert replay.session is None
    assert replay.run().verdict == "bitwise"


def test_a_trace_runs_the_same_step_and_says_whether_the_failure_survived():
    replay = replay_of(steps.LogOfSoftmax())
    assert replay.verdict().survives_instrumentation is None
    trace = replay.trace()
    assert "aten.log.default" in set(trace.events["op"])
    assert trace.first_bad.tensor == "loss"
    assert replay.verdict().survives_instrumentation is True


class Batched(nn.Module):
    """A model whose buffers and attributes change in forward."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 3)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.head(self.norm(x)) * self.calls


class Stateful(steps.Plain):
    def build_model(self):
        return Batched()


def test_buffers_and_attributes_start_over():
    replay = replay_of(Stateful())
    assert replay.run().verdict == "bitwise"
    assert replay.session.runner.model.calls == 1
    assert replay.verdict().verdict == "bitwise"
