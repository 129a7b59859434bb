"""Infs absorbed into wrong finite numbers, apart from what is absorbed as intended."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.unit.diagnose.cases import Through, analysis_of


def half(function: Any) -> Through:
    return Through(lambda x: function(x.half()).float())


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("rms norm", lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)),
        ("reciprocal", lambda x: 1 / (x * x).sum()),
        ("mean of a count", lambda x: x / (x.abs() * 1000).sum()),
    ],
)
def test_an_overflow_that_becomes_finite_is_absorbed(name: str, function: Any) -> None:
    found = analysis_of(half(function), torch.tensor([[400.0, 300.0, 2.0]]))
    assert found.origins == [], name
    assert [j.cause.label for _, j in found.absorbed if j.cause] == ["low_precision_overflow"], name


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("mask", lambda x: x.masked_fill(x > 0, -math.inf).softmax(-1)),
        ("clamp", lambda x: (x * 1000).exp().clamp(max=5.0)),
        ("where", lambda x: torch.where(x > 1000, x, (x * 1000).exp()).isinf().float() * x),
        ("minimum with a neutral Inf", lambda x: torch.full_like(x, math.inf).minimum(x)),
        ("exp of log of zero", lambda x: (x * 0).log().exp() + x),
        ("sigmoid of an overflow", lambda x: torch.sigmoid((x * 1000).exp())),
        ("inverse degree zeroed", lambda x: _zeroed((x * 0).pow(-0.5)) * x),
    ],
)
def test_benign_absorption_is_not_reported(name: str, function: Any) -> None:
    found = analysis_of(Through(function), torch.tensor([[1.0, 2.0]]), loss=_detached)
    assert found.absorbed == [], name


def _zeroed(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.isinf(), torch.zeros_like(x), x)


def _detached(out: torch.Tensor, batch: Any) -> torch.Tensor:
    # only the forward is of interest: a gradient of 0 x Inf would be an origin
    return out.detach().sum() + torch.zeros(1, requires_grad=True).sum()


X = torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])


@pytest.mark.parametrize(
    ("name", "function", "birth"),
    [
        ("log of zero", lambda x: x.log().nan_to_num(neginf=-1e3), "log"),
        ("on constants", lambda x: x * (X * 1).log().nan_to_num(neginf=-1e3) + x, "log"),
        ("an overflow", lambda x: (x * 100).exp().nan_to_num().log(), "exp"),
    ],
)
def test_a_replaced_infinity_that_the_loss_used_is_absorbed(
    name: str, function: Any, birth: str
) -> None:
    x = X if birth == "exp" or name == "log of zero" else X + 1
    found = analysis_of(Through(function), x, loss=lambda out, batch: out.mean())
    ops = [(found.trace.graph[a.birth].base, a.absorber) for a, _ in found.absorbed]
    assert [op for op, _ in ops] == [birth], name
    assert found.trace.graph[ops[0][1]].base == "nan_to_num"


@pytest.mark.parametrize(
    ("name", "function"),
    [
        # p log p has the limit 0 at p = 0, whatever finite number stands for log 0
        ("times zero", lambda x: x * (X * 1).log().nan_to_num(neginf=-1e9)),
        ("an empty mean", lambda x: x + (x.detach()[:0].sum() / 0).nan_to_num()),
        ("left out", lambda x: x + (X * 1).log().nan_to_num()[1:].sum()),
        ("compared", lambda x: x * ((X * 1).log().nan_to_num() > 0)),
    ],
)
def test_a_replaced_number_that_nothing_depends_on_is_benign(name: str, function: Any) -> None:
    found = analysis_of(Through(function), X, loss=lambda out, batch: out.mean())
    assert found.absorbed == [], name
