"""Statistics taken in groups and by bits are those of the tensors at the time."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from workbench.numerics.collected import SMALL, Collector, Late
from workbench.numerics.stats import TensorStats, tensor_stats

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def reference(t: torch.Tensor) -> TensorStats:
    """The same by the plainest means, in float64."""
    wide = t.detach().double().flatten()
    kept = wide[torch.isfinite(wide)]
    normal = torch.finfo(t.dtype).smallest_normal
    ends: list[float | None] = [None] * 4
    if kept.numel():
        low, high = float(kept.min()), float(kept.max())
        ends = [low, high, max(high, -low), float(kept.square().mean())]
    return TensorStats(
        int(wide.isnan().sum()),
        int((wide == math.inf).sum()),
        int((wide == -math.inf).sum()),
        kept.numel(),
        *ends,
        int((kept == 0).sum()),
        int(((kept.abs() < normal) & (kept != 0)).sum()),
    )


def same(found: TensorStats, expected: TensorStats) -> bool:
    square, other = found.mean_square, expected.mean_square
    if square is None or other is None:
        return found == expected
    close = math.isclose(square, other, rel_tol=1e-4)
    return close and found._replace(mean_square=0.0) == expected._replace(mean_square=0.0)


def examples(dtype: torch.dtype, size: int) -> dict[str, torch.Tensor]:
    x = torch.randn(size, generator=torch.Generator().manual_seed(size))
    found = {
        "both signs": x,
        "positive": x.abs() + 1e-3,
        "negative": -x.abs() - 1e-3,
        "half zeros": x.relu(),
        "zeros": x * 0,
        "negative zeros": -(x * 0).abs(),
        "subnormal": x * torch.finfo(dtype).smallest_normal,
        "large": x * 1e4,
        "nan": torch.where(torch.arange(size) == size // 2, math.nan, x),
        "negative nan": torch.where(torch.arange(size) == 0, -math.nan, x.abs()),
        "infinite": torch.where(torch.arange(size) == size - 1, -math.inf, x),
    }
    return {name: t.to(dtype) for name, t in found.items()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, SMALL, SMALL + 1, 140_000])
def test_statistics_are_exact_however_they_are_taken(dtype: torch.dtype, size: int) -> None:
    collector = Collector()
    tensors = examples(dtype, size)
    taken = {name: collector.take(t) for name, t in tensors.items()}
    for name, t in tensors.items():
        found = taken[name]
        expected = reference(t)
        assert same(found.now() if isinstance(found, Late) else found, expected), name
        assert same(tensor_stats(t), expected), name


def test_what_is_late_is_finite_and_holds_what_was_there() -> None:
    collector = Collector()
    x = torch.ones(8)
    late = collector.take(x)
    assert isinstance(late, Late)
    x.fill_(math.nan)
    assert not isinstance(collector.take(x), Late)
    assert late.now() == TensorStats(0, 0, 0, 8, 1.0, 1.0, 1.0, 1.0, 0, 0)


def test_groups_fill_up_settle_early_and_give_their_buffers_up() -> None:
    collector = Collector()
    lates = []
    for number in range(100):
        lates.append(collector.take(torch.full((1000,), float(number + 1))))
        if number == 3:
            assert isinstance(lates[1], Late)
            assert lates[1].now().min == 2.0
    collector.settle()
    for number, late in enumerate(lates):
        assert isinstance(late, Late)
        assert late._group.buffer is None
        assert late.now().max == number + 1.0 and late.now().finite == 1000


def test_transposed_snapshots_and_parameters_are_left_as_they_are() -> None:
    collector = Collector()
    parameter = torch.nn.Parameter(torch.randn(3, 5))
    lazy = torch._lazy_clone(parameter.detach())
    for t in (parameter, parameter.detach().t(), lazy):
        late = collector.take(t)
        assert isinstance(late, Late)
        assert same(late.now(), reference(t))
    assert torch._C._is_cow_tensor(lazy)
    assert parameter.requires_grad and parameter.grad_fn is None


def test_squares_that_overflow_warn_nobody() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Collector().take(torch.full((9,), 3e30))
    assert isinstance(found, TensorStats)
    assert found.mean_square == pytest.approx(9e60, rel=1e-4)
