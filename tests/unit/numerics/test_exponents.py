from __future__ import annotations

import math

import pytest
import torch

from workbench.numerics.exponents import exponents

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_finite_nonzero_element_is_counted_at_its_exponent(dtype):
    torch.manual_seed(0)
    values = (torch.randn(5000) * torch.logspace(-3, 3, 5000)).to(dtype)
    values[:4] = torch.tensor([0.0, math.nan, math.inf, -math.inf], dtype=dtype)
    found = exponents(values)
    kept = values[torch.isfinite(values) & (values != 0)].double().abs()
    wanted = torch.frexp(kept).exponent - 1
    for place, count in enumerate(found.counts):
        assert count == int((wanted == found.first + place).sum())
    assert sum(found.counts) == kept.numel()
    assert found.absmin == float(kept.min())


def test_a_float16_subnormal_has_its_own_exponent():
    assert exponents(torch.tensor([2.0**-24], dtype=torch.float16)) == (-24, (1,), 2.0**-24)


@pytest.mark.parametrize(
    "values",
    [
        torch.zeros(3),
        torch.tensor([math.nan, math.inf]),
        torch.empty(0),
        torch.arange(4),
        torch.ones(2, device="meta"),
    ],
)
def test_nothing_to_count(values):
    assert exponents(values) is None


def test_both_parts_of_a_complex_tensor_and_a_view_are_counted():
    values = torch.tensor([[1 + 4j, 0j], [2j, 8 + 0j]]).t()
    assert exponents(values) == (0, (1, 1, 1, 1), 1.0)
