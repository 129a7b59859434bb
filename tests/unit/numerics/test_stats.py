import math
import warnings

import numpy as np
import pytest
import torch

from tests.unit.numerics.examples import FLOATS, INF, NAN, mixed, values_of
from workbench.numerics import TensorStats, stats_batch, tensor_stats


def expected(t, dtype):
    """The same facts, computed one by one in float64 by numpy."""
    v = values_of(t)
    finite = v[np.isfinite(v)]
    size = np.abs(finite)
    return {
        "nan": int(np.isnan(v).sum()),
        "pos_inf": int((v == INF).sum()),
        "neg_inf": int((v == -INF).sum()),
        "finite": finite.size,
        "min": float(finite.min()) if finite.size else None,
        "max": float(finite.max()) if finite.size else None,
        "absmax": float(size.max()) if finite.size else None,
        "mean_square": float(np.mean((finite / size.max()) ** 2) * size.max() ** 2)
        if finite.size and size.max()
        else (0.0 if finite.size else None),
        "zeros": int((finite == 0).sum()),
        "subnormals": int(((size > 0) & (size < torch.finfo(dtype).smallest_normal)).sum())
        if dtype.is_floating_point
        else 0,
    }


def check(t):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = tensor_stats(t).as_dict()
    with np.errstate(all="ignore"):
        wanted = expected(t, t.dtype)
    exact = {k: v for k, v in wanted.items() if k != "mean_square"}
    assert {k: found[k] for k in exact} == exact
    if wanted["mean_square"] is None:
        assert found["mean_square"] is None
    else:
        assert found["mean_square"] == pytest.approx(wanted["mean_square"], rel=1e-4)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [1, 2, 1000, 4096, 4097, 300_001])
def test_mixed_values(dtype, n):
    check(mixed(dtype, n))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [500, 200_000])
class TestFinite:
    def test_signed(self, dtype, n):
        check(torch.randn(n).to(dtype))

    def test_rectified(self, dtype, n):
        check(torch.relu(torch.randn(n)).to(dtype))

    def test_positive(self, dtype, n):
        check((torch.rand(n) + 1).to(dtype))

    def test_all_zero(self, dtype, n):
        check(-torch.zeros(n, dtype=dtype))

    def test_all_subnormal(self, dtype, n):
        check(torch.full((n,), -torch.finfo(dtype).smallest_normal / 2, dtype=dtype))

    def test_largest_values(self, dtype, n):
        t = torch.full((n,), torch.finfo(dtype).max, dtype=dtype)
        found = tensor_stats(t)
        assert found.finite == n
        assert found.absmax == torch.finfo(dtype).max
        # float64's largest value has no square; every other dtype's has one in a Python float.
        squared = torch.finfo(dtype).max ** 2 if dtype is not torch.float64 else math.inf
        assert found.mean_square == pytest.approx(squared)

    def test_all_nan(self, dtype, n):
        check(torch.full((n,), NAN, dtype=dtype))


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e-8, 1e8, 1e18, 1e30])
def test_squares_neither_overflow_nor_vanish(scale):
    check(torch.linspace(-1, 1, 999) * scale)
    check(torch.linspace(-1, 1, 20_000).double() * scale * scale)


@pytest.mark.parametrize("n", [7, 60])
def test_order_in_memory_does_not_matter(n):
    t = torch.randn(n, 130, n)
    assert tensor_stats(t.permute(2, 0, 1)).counts == tensor_stats(t).counts
    for view in (t.permute(2, 0, 1), t[:, ::3], t[1:2].expand(3, 130, n), t.flip(0), t[0, 0, 0]):
        check(view)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8, torch.bool, torch.uint16])
def test_integers(dtype):
    t = torch.arange(-3, 9).clamp(min=0 if dtype in {torch.uint8, torch.uint16} else -3).to(dtype)
    found = tensor_stats(t)
    v = values_of(t)
    assert found == TensorStats(
        0, 0, 0, 12, v.min(), v.max(), np.abs(v).max(), np.mean(v * v), int((v == 0).sum()), 0
    )


def test_complex_ranges_are_over_parts_and_counts_over_elements():
    t = torch.tensor([1 + 2j, complex(NAN, 5.0), 0j, complex(-7.0, -INF)])
    found = tensor_stats(t)
    assert found.counts == (1, 0, 1, 2)
    assert (found.min, found.max, found.zeros) == (-7.0, 5.0, 1)


def test_float8():
    t = torch.tensor([0.5, -448.0, 0.0, NAN, 0.001953125]).to(torch.float8_e4m3fn)
    found = tensor_stats(t)
    assert found.counts == (1, 0, 0, 4)
    assert (found.min, found.max, found.zeros, found.subnormals) == (-448.0, 0.5, 1, 1)


def test_empty_meta_and_sparse():
    assert tensor_stats(torch.zeros(0)) == (0, 0, 0, 0, None, None, None, None, 0, 0)
    assert tensor_stats(torch.empty(3, device="meta")).counts.total == 0
    sparse = torch.sparse_coo_tensor([[0, 4]], [2.0, -INF], (10,))
    assert tensor_stats(sparse) == (0, 0, 1, 9, 0.0, 2.0, 2.0, 4 / 9, 8, 0)
    empty = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.long), torch.zeros(0), (4,))
    assert tensor_stats(empty) == (0, 0, 0, 4, 0.0, 0.0, 0.0, 0.0, 4, 0)


def test_history_and_snapshots_are_left_alone():
    t = torch.randn(64, requires_grad=True)
    check((t * 2).detach())
    assert tensor_stats(t * 2).finite == 64
    for n in (64, 10_000):
        shared = torch.randn(n)
        snapshot = torch._lazy_clone(shared)
        tensor_stats(shared)
        assert torch._C._is_cow_tensor(shared)
        assert torch._C._is_cow_tensor(snapshot)
    check(torch.tensor([1 + 2j]).conj().imag)


def test_values_are_plain_python_numbers():
    for t in (torch.randn(9), torch.relu(torch.randn(50)), torch.arange(3), mixed(torch.float16)):
        assert {type(x) for x in tensor_stats(t)} <= {int, float}


def test_a_batch_is_one_after_the_other():
    tensors = [torch.randn(3), torch.tensor([NAN]), torch.arange(4)]
    assert stats_batch(tensors) == [tensor_stats(t) for t in tensors]


def test_it_works_inside_a_dispatch_mode():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Look(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            seen.append(tensor_stats(out))
            return out

    with Look():
        torch.randn(5).exp().log().mean()
    assert [s.finite for s in seen] == [5, 5, 5, 1]
