import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.numerics.examples import FLOAT8, FLOATS, INF, NAN, mixed, values_of
from workbench.numerics import Counts, all_finite, count, first_nonfinite, tensor_stats


def expected(t):
    v = values_of(t)
    if np.iscomplexobj(v):
        nan = np.isnan(v)
        pos = ~nan & ((v.real == INF) | (v.imag == INF))
        neg = ~nan & ~pos & ((v.real == -INF) | (v.imag == -INF))
    else:
        nan, pos, neg = np.isnan(v), v == INF, v == -INF
    bad = [int(m.sum()) for m in (nan, pos, neg)]
    return Counts(*bad, v.size - sum(bad))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [1, 1000, 300_000])
def test_counts_are_those_of_an_elementwise_look(dtype, n):
    t = mixed(dtype, n)
    assert count(t) == expected(t)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8_is_counted_by_value(dtype):
    t = torch.tensor([0.0, 1.0, NAN, INF, -INF, -2.0]).to(dtype)
    assert count(t) == expected(t)
    assert count(t).nan >= 1


def test_float8_of_exponents_alone_has_a_nan():
    t = torch.tensor([1, 255, 127], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    assert count(t) == Counts(1, 0, 0, 2)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_a_complex_element_counts_once(dtype):
    parts = [0.0, 1.5, NAN, INF, -INF]
    t = torch.tensor([complex(a, b) for a in parts for b in parts], dtype=dtype)
    assert count(t) == expected(t)
    assert count(t).total == 25
    assert count(t.conj()) == expected(t.conj().resolve_conj())


def test_half_precision_complex_numbers_are_counted():
    t = torch.zeros(3, dtype=torch.complex32)
    t.view(torch.float16)[1] = NAN
    assert count(t) == Counts(nan=1, finite=2)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int64, torch.uint16, torch.uint64, torch.int8]
)
def test_integers_are_finite(dtype):
    t = torch.ones(2, 3).to(dtype)
    assert count(t) == Counts(finite=6)
    assert first_nonfinite(t) is None
    assert all_finite([t])


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.complex64])
def test_empty_tensors_have_nothing(dtype):
    t = torch.zeros(0, 3, dtype=dtype)
    assert count(t) == Counts()
    assert first_nonfinite(t) is None
    assert all_finite([t])
    assert all_finite([])


def test_scalars_have_an_index_without_numbers():
    assert first_nonfinite(torch.tensor(NAN)) == []
    assert first_nonfinite(torch.tensor(1.0)) is None


def test_sparse_tensors_count_their_implicit_zeros():
    t = torch.sparse_coo_tensor([[0, 2], [1, 0]], [NAN, 1.0], (3, 3))
    assert count(t) == Counts(nan=1, finite=8)
    assert first_nonfinite(t) == [0, 1]
    assert not all_finite([t])
    assert first_nonfinite(torch.eye(3).to_sparse()) is None


def test_an_uncoalesced_sum_is_what_counts():
    t = torch.sparse_coo_tensor([[1, 1]], [INF, -INF], (3,))
    assert count(t) == Counts(nan=1, finite=2)


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_compressed_sparse_tensors_count_too():
    t = torch.tensor([[0.0, INF], [0.0, 0.0]]).to_sparse_csr()
    assert count(t) == Counts(pos_inf=1, finite=3)
    assert first_nonfinite(t) == [0, 1]


def test_a_tensor_without_values_counts_nothing():
    assert count(torch.empty(5, device="meta")).total == 0
    assert all_finite([torch.empty(5, device="meta")])


def test_views_and_tensors_with_history_are_counted():
    t = torch.randn(400, 300, requires_grad=True)
    with torch.no_grad():
        t[7, 250] = NAN
    assert count(t.t()) == Counts(nan=1, finite=119_999)
    assert count(t * 2).nan == 1
    assert first_nonfinite(t.t()) == [250, 7]
    assert first_nonfinite(t[:, ::2]) == [7, 125]
    assert count(torch.tensor(NAN).expand(4, 5)) == Counts(nan=20)


@given(st.lists(st.sampled_from([0.0, 1.0, NAN, INF, -INF]), min_size=1, max_size=24), st.data())
def test_the_first_index_is_the_first_in_row_major_order(values, data):
    rows = data.draw(
        st.sampled_from([n for n in range(1, len(values) + 1) if len(values) % n == 0])
    )
    t = torch.tensor(values).reshape(rows, -1)
    bad = ~np.isfinite(np.array(values))
    wanted = None
    if bad.any():
        wanted = [int(i) for i in np.unravel_index(int(bad.argmax()), tuple(t.shape))]
    assert first_nonfinite(t) == wanted


def test_the_first_index_is_found_past_the_first_piece():
    t = torch.zeros(3, 200_000)
    t[2, 150_000] = -INF
    assert first_nonfinite(t) == [2, 150_000]


@pytest.mark.parametrize("in_place", [False, True])
class TestGate:
    @pytest.mark.parametrize("bad", [NAN, INF, -INF])
    @pytest.mark.parametrize("dtype", FLOATS)
    def test_one_bad_element_anywhere_closes_it(self, dtype, bad, in_place):
        tensors = [torch.randn(50, 3).to(d) for d in FLOATS]
        assert all_finite(tensors, in_place=in_place)
        tensors[FLOATS.index(dtype)][49, 2] = bad
        assert not all_finite(tensors, in_place=in_place)

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_a_norm_that_overflows_is_no_false_alarm(self, dtype, in_place):
        t = torch.full((500,), torch.finfo(dtype).max, dtype=dtype)
        assert all_finite([t, -t], in_place=in_place)

    def test_every_kind_of_tensor_is_looked_at(self, in_place):
        bad = [
            torch.tensor([complex(0, INF)]),
            torch.tensor([NAN]).to(torch.float8_e5m2),
            torch.sparse_coo_tensor([[1]], [NAN], (3,)),
            torch.nn.Parameter(torch.tensor([NAN])),
        ]
        for t in bad:
            assert not all_finite([torch.ones(2), None, t], in_place=in_place)

    def test_bits_are_left_alone(self, in_place):
        t = torch.tensor([1, 0x7FC12345, -0x7FFFFFFF, 0x00000001], dtype=torch.int32)
        floats = t.clone().view(torch.float32)
        all_finite([floats], in_place=in_place)
        assert torch.equal(floats.view(torch.int32), t)


def test_the_gate_leaves_a_snapshot_shared():
    t = torch.randn(100)
    snapshot = torch._lazy_clone(t)
    assert all_finite([t])
    assert count(t).finite == 100
    assert torch._C._is_cow_tensor(t)
    assert torch._C._is_cow_tensor(snapshot)


def test_counts_add_up():
    assert Counts(1, 0, 2, 3) + Counts(0, 4, 1, 1) == Counts(1, 4, 3, 4)
    assert Counts(1, 2, 3, 4).nonfinite == 6
    assert Counts(1, 2, 3, 4).as_dict() == {"nan": 1, "pos_inf": 2, "neg_inf": 3, "finite": 4}
    kinds = [Counts(1, 1, 1, 0), Counts(0, 1, 1), Counts(neg_inf=1), Counts(finite=1)]
    assert [c.kind for c in kinds] == ["nan", "+inf", "-inf", None]
    assert math.isnan(NAN)


def test_a_derivative_known_to_be_zero_has_no_memory_and_is_finite():
    zero = torch._efficientzerotensor((5,))
    assert all_finite([zero]) and count(zero) == Counts(finite=5)
    assert tensor_stats(zero)[:6] == tensor_stats(torch.zeros(5))[:6]


def test_a_nested_tensor_counts_what_it_holds():
    rows = [torch.tensor([1.0, NAN]), torch.tensor([INF]), torch.ones(3)]
    nested = torch.nested.nested_tensor(rows, layout=torch.jagged)
    assert count(nested) == Counts(nan=1, pos_inf=1, finite=4)
    assert not all_finite([nested])
