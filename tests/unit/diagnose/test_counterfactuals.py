"""Counterfactuals: specific changes that make a failure go, placebos that do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from workbench.diagnose.interventions import AtCall
from workbench.diagnose.log_space import LogSpace
from workbench.diagnose.rewrites import (
    clamped_argument,
    double_where,
    safe_denominator,
)
from workbench.diagnose.rewrites_values import keyword, representable_eps, valid_indices
from workbench.diagnose.roots import Roots
from workbench.diagnose.zoo_run import run_incident
from workbench.replay.calls import CallMode

STEPS = """
import torch, torch.nn as nn, torch.nn.functional as F
def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    x = torch.ones(4, 4); x[1] *= {size}
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, [{{"x": x}}]
def forward(model, b): return model(b["x"])
def loss(out, b): return {loss}
"""


def run(tmp_path: Path, loss: str, size: float = 1.0) -> list[dict[str, Any]]:
    path = tmp_path / "incident.py"
    path.write_text(STEPS.format(loss=loss, size=size))
    row = run_incident(path, tmp_path / "out", None)
    assert row["error"] is None, row["error"]
    return row["counterfactuals"]


@pytest.mark.parametrize(
    ("loss", "size"),
    [
        ("-(out.softmax(-1).log()[:, 0]).mean() * 0 + out.sum() * 0", 1e3),
        ("(out / (out * 0)).mean()", 1.0),
        ("(out * 1e3).exp().mean()", 1e3),
        ("(out * 0).pow(2).sum().sqrt()", 1.0),
    ],
)
def test_the_specific_change_makes_it_go_and_the_placebo_does_not(
    tmp_path: Path, loss: str, size: float
) -> None:
    rows = run(tmp_path, loss, size)
    assert rows[0]["result"] in ("gone", "moved")
    assert any(row["result"] == "gone" and row["placebo"] == "unchanged" for row in rows)


def test_a_change_that_has_no_part_in_it_changes_nothing(tmp_path: Path) -> None:
    rows = run(tmp_path, "(out - 1e4).log().mean()")  # the log of negative numbers
    assert rows and all(row["placebo"] == "unchanged" for row in rows)


def test_the_stable_form_is_put_in_through_gather_and_index() -> None:
    logits = torch.tensor([[200.0, 0.0, -50.0], [1.0, 2.0, 3.0]], requires_grad=True)
    labels = torch.tensor([2, 1])
    change = LogSpace()
    with CallMode([change]):
        p = logits.softmax(-1)
        loss = -p.gather(1, labels[:, None]).squeeze(1).log().mean()
    assert change.applied
    loss.backward()
    reference = logits.detach().clone().requires_grad_()
    functional.cross_entropy(reference, labels).backward()
    assert torch.allclose(logits.grad, reference.grad)


@pytest.mark.parametrize("value", [200.0, -200.0])
def test_the_stable_form_of_a_handwritten_binary_loss(value: float) -> None:
    x = torch.tensor([value], requires_grad=True)
    y = torch.tensor([0.5])
    with CallMode([LogSpace()]):
        p = x.sigmoid()
        loss = -(y * p.log() + (1 - y) * (1 - p).log()).mean()
    expected = functional.binary_cross_entropy_with_logits(x.detach(), y)
    assert torch.allclose(loss, expected)


def test_only_the_call_with_the_number_is_changed() -> None:
    x = torch.tensor([0.0, 1.0])
    change = AtCall([1], clamped_argument(0.5, None))
    with CallMode([change]):
        first, second = x.log(), x.log()
    assert torch.isinf(first).any() and torch.isfinite(second).all()
    assert change.applied


def test_double_where_keeps_values_and_makes_the_gradient_finite() -> None:
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    out = double_where()(torch.sqrt, (x,), {})
    out.sum().backward()
    assert torch.equal(out, torch.tensor([0.0, 2.0]))
    assert torch.equal(x.grad, torch.tensor([0.0, 0.25]))


@pytest.mark.parametrize("divide", [torch.div, torch.Tensor.__truediv__])
def test_safe_denominator(divide: Any) -> None:
    out = safe_denominator()(divide, (torch.ones(2), torch.tensor([0.0, 2.0])), {})
    assert torch.equal(out, torch.tensor([1.0, 0.5]))


def test_calls_in_hooks_and_custom_backward_are_numbered_too() -> None:
    names: list[str] = []

    def note(number: int, func: Any, args: Any, kwargs: Any) -> Any:
        names.append(func.__name__)
        return NotImplemented

    x = torch.ones(2, requires_grad=True)
    with CallMode([note]):
        y = x * 2
        y.register_hook(lambda g: g.exp())
        y.sum().backward()
    assert "exp" in names
    assert torch.equal(x.grad, torch.full((2,), 2 * torch.e))


def found(tmp_path: Path, text: str) -> dict[str, Any]:
    path = tmp_path / "incident.py"
    path.write_text(text)
    row = run_incident(path, tmp_path / "out", None)
    assert row["error"] is None, row["error"]
    return row


def by_name(row: dict[str, Any]) -> dict[str, tuple[str, str | None]]:
    return {c["intervention"]: (c["result"], c["placebo"]) for c in row["counterfactuals"]}


SCALED = """
import torch, torch.nn as nn
AUTOCAST = dict(dtype=torch.float16)
CLIP = dict(max_norm=1.0, unscale=False)
def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    x = torch.ones(4, 4)
    scaler = torch.amp.GradScaler("cpu", init_scale={scale})
    return model, torch.optim.SGD(model.parameters(), 1e-3), scaler, [{{"x": x}}]
def STEP(k, model, opt, scaler):
    for p in model.parameters(): p.grad.div_(scaler.get_scale())
    opt.step()
def forward(model, b): return model(b["x"])
def loss(out, b): return (out.float() * {factor}).pow(2).mean()
"""


def test_without_the_loss_scale_the_gradient_is_finite(tmp_path: Path) -> None:
    row = found(tmp_path, SCALED.format(scale="65536.0 * 16", factor="1.0"))
    assert by_name(row)["a loss scale of 1"] == ("gone", "unchanged")


def test_a_skip_is_not_benign_when_the_unscaled_backward_is_not_finite(tmp_path: Path) -> None:
    # the scaler would skip this step whatever its scale: the gradient itself is out of range
    text = """
import torch, torch.nn as nn
AUTOCAST = dict(dtype=torch.float16)
def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    with torch.no_grad():
        model[0].weight.fill_(50.0); model[1].weight.fill_(200.0)
    x = torch.full((4, 4), 100.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    return model, torch.optim.SGD(model.parameters(), 1e-3), scaler, [{"x": x}]
def forward(model, b): return model(b["x"])
def loss(out, b): return (out.float() * 1e3).pow(2).mean()
"""
    row = found(tmp_path, text)
    assert row["op"] == "aten.addmm.default"
    assert by_name(row)["addmm in float32"][0] == "moved"
    assert "benign_skip" not in {result for result, _ in by_name(row).values()}


@pytest.mark.parametrize(
    ("edit", "leaf"),
    [
        ("model[0].weight[1, 2] = float('nan')", "0.weight"),
        ("model[1].running_mean[1] = float('inf')", "1.running_mean"),
    ],
)
def test_what_was_bad_before_is_repaired_in_the_state(tmp_path: Path, edit: str, leaf: str) -> None:
    text = f"""
import torch, torch.nn as nn
def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).eval()
    with torch.no_grad():
        {edit}
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, [{{"x": torch.ones(4, 4)}}]
def forward(model, b): return model(b["x"])
def loss(out, b): return out.mean()
"""
    rows = by_name(found(tmp_path, text))
    assert rows[f"0 for the non-finite elements of {leaf}"] == ("gone", "unchanged")


def test_only_the_field_that_is_bad_is_repaired(tmp_path: Path) -> None:
    text = """
import torch, torch.nn as nn
def build():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    y = torch.zeros(6, 1); y[4] = float("nan")
    batch = {"x": torch.ones(6, 4), "y": y}
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, [batch]
def forward(model, b): return model(b["x"])
def loss(out, b): return (out - b["y"]).pow(2).mean()
"""
    row = found(tmp_path, text)
    assert row["cause"] == "bad_label"
    rows = by_name(row)
    assert rows["sample 4 left out"] == ("gone", "unchanged")
    assert rows["0 for the non-finite elements of batch['y']"] == ("gone", "unchanged")


def test_the_sample_that_holds_it_is_left_out(tmp_path: Path) -> None:
    rows = by_name({"counterfactuals": run(tmp_path, "(out - 1e4).log().mean()")})
    assert not any("left out" in name for name in rows)  # it is in every sample
    text = STEPS.format(loss="(b['x'].sum(-1) + out[:, 0] * 0 - 3).rsqrt().mean()", size=-1.0)
    (tmp_path / "two").mkdir()
    rows = by_name(found(tmp_path / "two", text))
    assert all(placebo == "unchanged" for result, placebo in rows.values() if result == "gone")


def test_an_absorbed_inf_has_a_counterfactual_too(tmp_path: Path) -> None:
    text = """
import torch, torch.nn as nn
class Norm(nn.Module):
    def forward(self, x):
        return x * (x.half() ** 2).mean(-1, keepdim=True).rsqrt().float()
def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Norm(), nn.Linear(4, 1))
    return model, torch.optim.SGD(model.parameters(), 1e-9), None, [{"x": torch.ones(4, 4) * 2e3}]
def forward(model, b): return model(b["x"])
def loss(out, b): return out.mean()
"""
    row = found(tmp_path, text)
    assert not row["origins"] and row["absorbed"]
    assert ("gone", "unchanged") in by_name(row).values()


def test_a_change_that_hides_the_value_is_not_gone(tmp_path: Path) -> None:
    # where the exponential is bounded, its square in half overflows under a rsqrt: absorbed
    text = """
import torch, torch.nn as nn
def build():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), 1e-9), None, [{"x": torch.ones(4, 4)}]
def forward(model, b): return model(b["x"]) * 0 + 200
def loss(out, b):
    e = out.exp()
    return e.mean() + ((e * 2 + 100).half() ** 2).float().rsqrt().mean()
"""
    rows = found(tmp_path, text)["counterfactuals"]
    clamped = next(c for c in rows if c["intervention"] == "an argument of at most 5")
    assert clamped["result"] == "moved"


GROWTH = """
import torch, torch.nn as nn
def build():
    torch.manual_seed(14)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    x = torch.randn(16, 8) * 5
    batch = {"x": x, "y": x.sum(1, keepdim=True)}
    return model, torch.optim.SGD(model.parameters(), 2.0), None, [batch] * 8
def forward(model, b): return model(b["x"])
def loss(o, b): return (o - b["y"]).pow(2).mean()
"""


def test_growth_is_tested_over_the_kept_steps(tmp_path: Path) -> None:
    row = found(tmp_path, GROWTH)
    assert row["origins"][0]["kind"] == "growth"
    rate = [v for k, v in by_name(row).items() if k.startswith("a learning rate times")]
    assert rate == [("gone", "unchanged")]


def test_an_exception_that_comes_again_is_unchanged(tmp_path: Path) -> None:
    rows = run(tmp_path, "out.half().masked_fill(out > -9, -1e9).float().mean()")
    assert rows[0]["result"] == "gone" and rows[0]["placebo"] == "unchanged"


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda x: torch.sqrt(x * x).sum(), [0.0, 1.0]),
        (lambda x: (x**2).sum().sqrt(), [0.0, 1.0]),
        (lambda x: x.square().sum(-1, keepdim=True).pow(0.5).sum(), [0.0, 1.0]),
    ],
)
def test_roots_of_squares_have_a_finite_derivative(make: Any, expected: list[float]) -> None:
    x = torch.tensor([0.0, 2.0], requires_grad=True)
    change = Roots()
    with CallMode([change]):
        out = make(x)
    out.backward()
    assert change.applied
    assert torch.equal(x.grad, torch.tensor(expected)) and out == 2


def test_division_by_a_zero_norm() -> None:
    x = torch.zeros(2, 3, requires_grad=True)
    with CallMode([Roots()]):
        out = x / x.norm(dim=-1, keepdim=True)
    out.sum().backward()
    assert torch.equal(out, torch.zeros(2, 3)) and torch.isfinite(x.grad).all()


@pytest.mark.parametrize(
    ("func", "args", "expected"),
    [
        (functional.embedding, (torch.tensor([0, 9]), torch.eye(3)), torch.eye(3)[[0, 2]]),
        (torch.gather, (torch.eye(3), 1, torch.tensor([[-4]])), torch.tensor([[1.0]])),
        (torch.index_select, (torch.eye(3), 0, torch.tensor([7])), torch.eye(3)[[2]]),
    ],
)
def test_indices_are_brought_into_their_table(func: Any, args: Any, expected: Any) -> None:
    assert torch.equal(valid_indices()(func, args, {}), expected)


def test_ignored_labels_stay_ignored() -> None:
    logits, target = torch.eye(3)[:2], torch.tensor([-100, 5])
    out = valid_indices()(functional.cross_entropy, (logits, target), {})
    assert torch.equal(out, functional.cross_entropy(logits, torch.tensor([-100, 2])))


def test_an_eps_that_rounds_to_zero_is_lifted() -> None:
    x = torch.zeros(2, dtype=torch.float16)
    out = representable_eps()(torch.add, (x, 1e-8), {})
    assert torch.equal(out, torch.full((2,), 1e-3, dtype=torch.float16))
    assert representable_eps()(torch.add, (x, 1.0), {}) is NotImplemented


def test_the_eps_is_tested_where_it_vanished(tmp_path: Path) -> None:
    text = STEPS.format(loss="((out * 0).half() + 1e-8).rsqrt().float().mean()", size=1.0)
    row = found(tmp_path, text)
    assert row["cause"] == "epsilon_underflow"
    rows = by_name(row)
    assert rows["an eps of 0.001 where 1e-08 rounds to 0"] == ("gone", "unchanged")


def test_a_change_of_one_call_is_made_where_the_value_is_born_next(tmp_path: Path) -> None:
    text = """
import torch, torch.nn as nn
class Masked(nn.Module):
    def forward(self, x):
        return x + x.masked_fill(torch.ones_like(x, dtype=torch.bool), -torch.inf).softmax(-1)
def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Masked(), Masked())
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, [{"x": torch.ones(4, 4)}]
def forward(model, b): return model(b["x"])
def loss(out, b): return out.mean()
"""
    rows = by_name(found(tmp_path, text))
    assert rows["zeros for rows that are masked everywhere in 2 calls"] == ("gone", "unchanged")


def test_where_the_value_is_born_at_another_op_it_moved(tmp_path: Path) -> None:
    # one of two logarithms is repaired; the loss is still -Inf, but by the other op
    rows = run(tmp_path, "((out * 0).log() - (out * 0 - 1).sqrt()).mean()")
    clamped = next(c for c in rows if c["intervention"] == "an argument of at least 1e-7")
    assert clamped["result"] in ("moved", "unchanged")


MASKED_CLASS = (
    "F.cross_entropy(out.masked_fill(torch.eye(3)[0].bool(), -torch.inf), "
    "torch.zeros(4, dtype=torch.long))"
)


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        ("((1 - (out > -9).float()) * -torch.inf).mean() + out.mean()", "0 where one factor is 0"),
        ("out[out > 99].mean()", "a sum divided by max(count, 1)"),
        ("out.mean() + out[out > 99].max()", "a sum divided by max(count, 1)"),
        ("torch.full((3,), torch.nan).nanmean() + out.mean()", "a sum divided by max(count, 1)"),
        ("(out * 0 + 0.9).acosh().mean()", "an argument of at least 1 + 1e-6"),
        ("F.one_hot(torch.tensor([0, -1]), 3).sum() + out.mean()", "indices inside of their table"),
        (MASKED_CLASS, "a mask of -1e4 instead of -Inf"),
    ],
)
def test_every_cause_has_its_own_change(tmp_path: Path, loss: str, name: str) -> None:
    rows = by_name({"counterfactuals": run(tmp_path, loss)})
    assert rows[name] == ("gone", "unchanged")


def test_two_origins_go_only_together(tmp_path: Path) -> None:
    rows = by_name(
        {
            "counterfactuals": run(
                tmp_path, "(out * 0).log().sum() * 0 + (out * 0 - 1).sqrt().sum() "
            )
        }
    )
    together = [result for name, result in rows.items() if " and " in name]
    assert together == [("gone", "unchanged")]


def test_batch_statistics_of_one_sample(tmp_path: Path) -> None:
    text = """
import torch, torch.nn as nn
def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, [{"x": torch.ones(1, 4)}]
def forward(model, b): return model(b["x"])
def loss(out, b): return out.mean()
"""
    rows = by_name(found(tmp_path, text))
    assert rows["the running statistics instead of the batch's"] == ("gone", "unchanged")


def test_attention_in_which_a_row_hides_every_key(tmp_path: Path) -> None:
    text = """
import torch, torch.nn as nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
    def forward(self, x, hides):
        return self.attention(x, x, x, key_padding_mask=hides, need_weights=True)[0]
def build():
    torch.manual_seed(0)
    model = Net()
    hides = torch.zeros(3, 5, dtype=torch.bool); hides[1] = True
    batch = {"x": torch.randn(3, 5, 4), "hides": hides}
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, [batch]
def forward(model, b): return model(b["x"], b["hides"])
def loss(out, b): return out.mean()
"""
    row = found(tmp_path, text)
    assert row["cause"] == "fully_masked_softmax"
    assert ("gone", "unchanged") in by_name(row).values()


CLIPS_SCALED = """
import torch, torch.nn as nn
CLIP = dict(max_norm=1.0, unscale=False)
def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**100)
    return model, torch.optim.SGD(model.parameters(), 1e-3), scaler, [{"x": torch.randn(6, 4)}]
def forward(model, b): return model(b["x"])
def loss(o, b): return o.pow(2).mean()
"""


def test_a_norm_that_overflows_under_the_scale_is_finite_once_unscaled(tmp_path: Path) -> None:
    row = found(tmp_path, CLIPS_SCALED)
    assert row["origins"][0]["cause"] == "norm_overflow"
    rows = by_name(row)
    assert rows["gradients unscaled before they are clipped"] == ("gone", "unchanged")


RUNNING_VARIANCE = """
import torch, torch.nn as nn
def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, [{"x": torch.randn(6, 4) * 1e25}]
def forward(model, b): return model(b["x"])
def loss(o, b): return o.pow(2).mean()
"""


def test_a_running_variance_overflows_also_where_its_copy_would_not(tmp_path: Path) -> None:
    row = found(tmp_path, RUNNING_VARIANCE)
    assert row["origins"][0]["cause"] == "float32_overflow"
    rows = by_name(row)
    # computed in float64 it still does not fit into its float32 buffer
    assert rows["native_batch_norm in float64"][0] == "unchanged"
    assert rows["operands of at most 1e18"] == ("gone", "unchanged")


def test_a_keyword_that_a_call_gives_already_is_no_change() -> None:
    changed = keyword(label_smoothing=0.0)
    outputs, labels = torch.randn(2, 3), torch.tensor([0, 1])
    given = {"label_smoothing": 0.0}
    assert changed(functional.cross_entropy, (outputs, labels), given) is NotImplemented
    smoothed = changed(functional.cross_entropy, (outputs, labels), {"label_smoothing": 0.1})
    assert torch.equal(smoothed, functional.cross_entropy(outputs, labels))
