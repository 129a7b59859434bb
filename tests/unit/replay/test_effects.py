"""What a changed condition did, seen once the step ran: nothing is accepted silently."""

import pytest
import torch
from torch import nn

from tests.unit.replay.steps import LogOfSoftmax, Plain, batch, record
from workbench.errors import CannotRunError, UsageError
from workbench.evidence.conditions import Conditions
from workbench.evidence.schema import FirstBad
from workbench.replay import Replay


def run(step, batches=None, **changes):
    source = record(step, batches)
    replay = Replay.from_source(source)
    return replay, replay.run(conditions=replay.nearest.replace(**changes))


def reasons(step, batches=None, **changes):
    _, result = run(step, batches, **changes)
    return {item["key"]: item["why"] for item in result.to_data()["without_effect"]}


class Attends(LogOfSoftmax):
    def forward(self, model, batch):
        x = batch["x"][None]
        return model(nn.functional.scaled_dot_product_attention(x, x, x)[0])


class AttendsInside(LogOfSoftmax):
    def build_model(self):
        return nn.Sequential(Attention(), nn.Linear(4, 3))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x[None], x[None], x[None], need_weights=False)[0][0]


def test_an_attention_kernel_is_idle_where_nothing_attends():
    assert reasons(LogOfSoftmax(), sdpa="math") == {
        "sdpa": "No effect: the step does not call scaled_dot_product_attention."
    }
    assert reasons(Attends(), sdpa="math") == {}
    assert reasons(AttendsInside(), sdpa="math") == {}


class Fixed(LogOfSoftmax):
    def build_model(self):
        return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))


def test_a_seed_is_idle_where_nothing_is_drawn():
    assert "drew no random numbers" in reasons(Fixed(), rng=3)["rng"]
    assert reasons(LogOfSoftmax(), rng=3) == {}


def test_anomaly_mode_does_not_act_on_a_loss():
    assert "looks at what backward returns" in reasons(Fixed(), anomaly=True)["anomaly"]


def test_all_samples_and_the_implementation_that_runs_already():
    assert "all samples" in reasons(Fixed(), keep_samples=(0, 1, 2, 3))["keep_samples"]
    why = reasons(Plain(), optimizer="for_loop")["optimizer"]
    assert why == "No effect: the optimizer runs as for-loop already."


def test_modules_that_are_in_float32_already():
    why = reasons(Fixed(), float32_modules=("0",))["float32_modules"]
    assert "already" in why
    assert reasons(Region(), float32_modules=("0",)) == {}


class Inner(nn.Module):
    """Opens an autocast region of its own, and another one that was made before."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.seen = []

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.linear(x)
        self.seen.append(y.dtype)
        self.again(x)
        return y

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def again(self, x):
        self.seen.append(self.linear(x).dtype)


class Region(LogOfSoftmax):
    def build_model(self):
        return nn.Sequential(Inner())


def test_regions_that_a_module_opens_itself_stay_off_in_float32():
    replay, _ = run(Region(), float32_modules=("0",))
    assert replay.session.runner.model[0].seen == [torch.float32, torch.float32]
    plain = Replay.from_source(record(Region()))
    plain.run()
    assert plain.session.runner.model[0].seen == [torch.bfloat16, torch.bfloat16]


class Norms(LogOfSoftmax):
    def build_model(self):
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


def test_the_mode_of_one_module_is_set_and_acts():
    replay, result = run(Norms(), mode="eval:1")
    model = replay.session.runner.model
    assert [m.training for m in model] == [True, False, True, True]
    assert result.read_back["mode"] == "mixed"
    assert torch.equal(model[1].running_mean, torch.zeros(8))
    plain = Replay.from_source(record(Norms()))
    original = plain.run()
    assert not torch.equal(plain.session.runner.model[1].running_mean, torch.zeros(8))
    assert result.loss_bits is not None and original.changed == {}


def test_a_mode_that_is_there_already_and_a_module_that_is_not():
    assert "in train mode already" in reasons(Norms(), mode="train:1+2")["mode"]
    with pytest.raises(UsageError, match="'head'"):
        run(Norms(), mode="eval:head")
    with pytest.raises(UsageError, match="eval:MODULE"):
        Conditions().replace(mode="eval:")


def test_a_module_of_torchs_own_is_compiled_and_read_back():
    _, result = run(Fixed(), compile="aot_eager")
    assert result.read_back["compile"] == "aot_eager"
    assert result.without_effect == []


class Opaque(LogOfSoftmax):
    """Nothing of it can be captured."""

    def build_model(self):
        return Closed()


class Closed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    @torch.compiler.disable
    def forward(self, x):
        return self.linear(x)


def test_a_model_that_is_not_captured_says_so():
    why = reasons(Opaque(), compile="aot_eager")["compile"]
    assert why.startswith("No effect: torch.compile captured no graph")


def test_many_compiled_replays_in_one_process_are_all_compiled():
    replay = Replay.from_source(record(Fixed()))
    wanted = replay.nearest.replace(compile="eager")
    limit = torch._dynamo.config.recompile_limit
    backends = {replay.run(conditions=wanted).read_back["compile"] for _ in range(limit + 2)}
    assert backends == {"eager"}


# -- memory -----------------------------------------------------------------------------------


class Huge(nn.Module):
    grow = False

    def forward(self, x):
        if Huge.grow:
            torch.empty(10**15)
        return x


class Hungry(LogOfSoftmax):
    def build_model(self):
        return nn.Sequential(nn.Linear(4, 3), nn.Sequential(Huge()))


class OnGpu(Hungry):
    def loss(self, outputs, batch):
        if Huge.grow:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return super().loss(outputs, batch)


def test_out_of_memory_names_the_module_and_what_to_shrink(monkeypatch):
    source = record(Hungry())
    monkeypatch.setattr(Huge, "grow", True)
    for act in (Replay.run, Replay.trace, Replay.forward):
        with pytest.raises(CannotRunError) as refused:
            act(Replay.from_source(source))
        text = str(refused.value)
        assert "ran out of memory in forward, in the module '1.0'" in text
        assert "keep_samples" in text
        assert "device=cpu" not in text  # it is on the CPU


def test_out_of_memory_of_a_gpu_outside_of_modules(monkeypatch):
    source = record(OnGpu())
    monkeypatch.setattr(Huge, "grow", True)
    monkeypatch.setattr(Huge, "forward", lambda self, x: x)
    with pytest.raises(CannotRunError, match=r"in loss, outside .*20\.00 GiB.*--until forward"):
        Replay.from_source(source).run()


def test_out_of_memory_that_was_recorded_is_reproduced(monkeypatch):
    monkeypatch.setattr(Huge, "grow", True)
    source = record(Hungry())
    assert source.first_bad.tensor == "exception:RuntimeError"
    assert Replay.from_source(source).run().first_bad["stage"] == "forward"


def test_out_of_memory_while_building(monkeypatch):
    source = record(Hungry())

    def build(self):
        raise MemoryError("no more")

    monkeypatch.setattr(Hungry, "build_model", build)
    with pytest.raises(CannotRunError, match="while the model of 'Hungry' was built"):
        Replay.from_source(source).run()


# -- what cannot be replayed ------------------------------------------------------------------


def test_a_missing_state_says_what_still_runs():
    source = record(Plain(), until=9)
    source.completeness = {"update": "missing optimizer state", "backward": "complete"}
    replay = Replay.from_source(source)
    with pytest.raises(CannotRunError, match=r"missing optimizer state\. .*--until clip"):
        replay.update()
    assert replay.clip().status == "clean"
    states = {stage.stage: stage.status for stage in replay.stages}
    assert states["update"] == "unavailable"
    assert states["backward"] == "clean"


def test_no_parameters_at_all_says_how_to_keep_them():
    source = record(Plain(), until=9)
    source.state.model = None
    source.first_bad = FirstBad(run_id="r", step=3, stage="after_update", tensor="parameter:w")
    with pytest.raises(CannotRunError, match=r"No other stage can.*Policy\(recovery_every=1\)"):
        Replay.from_source(source).run()


class Other(LogOfSoftmax):
    def build_model(self):
        more = [nn.Linear(3, 3) for _ in range(9)]
        return nn.Sequential(nn.Linear(4, 9), nn.Dropout(0.5), nn.Linear(9, 3), *more)


def test_a_step_that_does_not_fit_lists_all_differences():
    source = record(LogOfSoftmax())
    source.step = Other()
    with pytest.raises(CannotRunError) as refused:
        Replay.from_source(source).run()
    for name in ("'0.weight'", "'0.bias'", "'2.weight'", "'3.weight'", "'11.bias'"):
        assert name in str(refused.value)
    assert "Nothing was loaded" in str(refused.value)


class Graphed(LogOfSoftmax):
    def __init__(self):
        self.graph = object.__new__(torch.cuda.CUDAGraph)


def test_a_captured_cuda_graph_is_named():
    source = record(LogOfSoftmax())
    assert Replay.from_source(source).run().notes == []
    source.step = Graphed()
    assert "captured CUDA graph" in Replay.from_source(source).run().notes[0]


class Phased(LogOfSoftmax):
    phases = ("first", "second")

    def forward(self, model, batch, phase):
        return super().forward(model, batch)

    def loss(self, outputs, batch, phase):
        return outputs.mean() if phase == "first" else super().loss(outputs, batch)


def test_the_phase_and_the_micro_batch_that_failed_are_named():
    loss = Replay.from_source(record(Phased())).run().stages[2]
    assert loss.sentence == "loss: 1 NaN of 1. In phase second."
    fine = {**batch(), "sharpness": torch.tensor(1.0)}
    loss = Replay.from_source(record(LogOfSoftmax(), [fine, batch()])).run().stages[2]
    assert loss.sentence == "loss: 1 NaN of 1. In micro-batch 2 of 2."
