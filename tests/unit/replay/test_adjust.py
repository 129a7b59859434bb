import pytest
import torch
from torch import nn

from workbench.errors import UsageError
from workbench.evidence.conditions import Conditions
from workbench.replay import adjust
from workbench.replay.compiled import compile_model, graphs_captured, is_compiled
from workbench.replay.precision import run_in_float32
from workbench.replay.samples import keep_samples

CPU = torch.device("cpu")


def test_samples_are_kept_in_every_tensor_of_the_batch_size():
    batch = {"x": torch.arange(8.0).reshape(4, 2), "y": torch.arange(4), "scale": torch.ones(3)}
    kept = keep_samples(batch, (1, 3))
    assert kept["x"].tolist() == [[2.0, 3.0], [6.0, 7.0]]
    assert kept["y"].tolist() == [1, 3]
    assert kept["scale"].shape == (3,)
    assert batch["y"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("wanted", [(4,), (0, 9)])
def test_a_sample_that_does_not_exist_is_refused(wanted):
    with pytest.raises(UsageError, match=r"the batch has 4 samples"):
        keep_samples({"x": torch.zeros(4, 2)}, wanted)


def test_a_batch_is_copied_with_its_strides_and_cast():
    recorded = torch.zeros(2, 3).t()
    copied = adjust.cast_batch((recorded, torch.zeros(2, dtype=torch.int64)), None, CPU)
    copied[0].add_(1)
    assert copied[0].stride() == recorded.stride()
    assert recorded.sum() == 0
    low = adjust.cast_batch((recorded, torch.zeros(2, dtype=torch.int64)), torch.float16, CPU)
    assert [t.dtype for t in low] == [torch.float16, torch.int64]


def test_everything_is_cast_but_the_step_counter():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    adjust.cast_everything(model, [optimizer], torch.float64)
    state = optimizer.state[model.weight]
    assert state["exp_avg"].dtype == torch.float64
    assert state["step"].dtype == torch.float32
    assert model.weight.dtype == torch.float64


@pytest.mark.parametrize("name", ["for_loop", "foreach", "fused"])
def test_the_optimizer_implementation_is_chosen_and_read_back(name):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    said = adjust.choose_optimizer([optimizer], name)
    assert (said is not None) == (name == "for_loop")  # which is what runs on a CPU anyway
    assert adjust.optimizer_implementation([optimizer]) == name
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def test_an_optimizer_without_that_implementation_is_said_to_have_none():
    optimizer = torch.optim.LBFGS(nn.Linear(2, 2).parameters())
    assert "LBFGS has no fused" in adjust.choose_optimizer([optimizer], "fused")


def test_the_loss_scale_is_set_before_and_after_first_use():
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    assert adjust.set_scale(scaler, 4.0) is None
    assert scaler.get_scale() == 4.0
    scaler.scale(torch.ones(()))
    adjust.set_scale(scaler, 2.0)
    assert scaler.scale(torch.ones(())) == 2.0
    assert adjust.set_scale(None, 2.0) == "The step has no loss scaler."
    assert "object does not let" in adjust.set_scale(object(), 2.0)


def test_step_attributes_are_put_back():
    class Step:
        max_grad_norm = None

    step = Step()
    with adjust.step_attributes(step, {"max_grad_norm": 2.0}):
        assert step.max_grad_norm == 2.0
    assert step.max_grad_norm is None
    assert vars(step) == {}


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.seen = {}

    def forward(self, x):
        y = self.first(x)
        self.seen["between"] = y.dtype
        return self.second(y)


def test_a_module_is_kept_out_of_autocast():
    model = Pair()
    run_in_float32(model, ["first"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(torch.ones(1, 2))
        assert torch.is_autocast_enabled("cpu")
    assert model.seen["between"] == torch.float32
    assert out.dtype == torch.bfloat16


def test_autocast_comes_back_when_such_a_module_raises():
    model = Pair()
    run_in_float32(model, ["first"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.raises(RuntimeError):
            model(torch.ones(1, 5))
        assert torch.is_autocast_enabled("cpu")


def test_a_half_precision_module_runs_in_float32_and_hands_back_half():
    model = Pair().half()
    run_in_float32(model, ["first"])
    assert model.first.weight.dtype == torch.float32
    assert model(torch.ones(1, 2, dtype=torch.float16)).dtype == torch.float16


def test_an_unknown_module_is_refused_by_name():
    with pytest.raises(UsageError, match="'third'"):
        run_in_float32(Pair(), ["third"])


EAGER = Conditions().replace(compile="eager")


def test_a_model_is_compiled_in_place_once():
    model = Pair()
    assert compile_model(model, EAGER, Conditions()) is model
    assert is_compiled(model)
    assert next(name for name, _ in model.named_parameters()) == "first.weight"
    before = model._compiled_call_impl
    compile_model(model, EAGER, EAGER)
    assert model._compiled_call_impl is before


def test_a_compiled_model_is_compiled_another_way():
    model = torch.compile(Pair(), backend="aot_eager")
    assert compile_model(model, EAGER, EAGER) is model
    other = compile_model(model, EAGER, EAGER.replace(compile="aot_eager"))
    assert other is model._orig_mod
    assert other._compiled_call_impl is not None


class OwnSequence(nn.Sequential):
    """Takes its forward from torch."""


@pytest.mark.parametrize("kind", [nn.Sequential, OwnSequence])
def test_a_module_of_torchs_own_is_really_compiled(kind):
    before = graphs_captured()
    compile_model(kind(nn.Linear(4, 3)), EAGER, Conditions())(torch.ones(2, 4))
    assert graphs_captured() == before + 1


def test_modes():
    model = Pair()
    model.first.eval()
    adjust.set_mode(model, "recorded")
    assert adjust.describe(model)["mode"] == "mixed"
    adjust.set_mode(model, "eval")
    assert adjust.describe(model)["mode"] == "eval"
