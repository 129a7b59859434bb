"""Counterfactuals: specific changes that make a failure go, placebos that do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from workbench.diagnose.interventions import AtCall
from workbench.diagnose.log_space import LogSpace
from workbench.diagnose.rewrites import clamped_argument, double_where, safe_denominator
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
