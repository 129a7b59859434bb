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
