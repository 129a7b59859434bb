import math

import pytest
import torch

from workbench.numerics import bits_equal, compare

NAN, INF = math.nan, math.inf


def test_shapes_come_first_and_end_the_comparison():
    found = compare(torch.zeros(2), torch.zeros(3))
    assert not found.same_shape
    assert not found.same_masks
    assert found.masks == []
    assert found.errors is None


def test_masks_are_counted_with_overlap_and_first_index():
    a = torch.tensor([[NAN, 1.0, INF], [NAN, 2.0, 3.0]])
    b = torch.tensor([[NAN, 1.0, -INF], [0.0, NAN, 3.0]])
    nan, pos_inf, neg_inf = compare(a, b).masks
    assert (nan.a, nan.b, nan.both) == (2, 2, 1)
    assert (nan.first_a, nan.first_b, nan.first_difference) == ([0, 0], [0, 0], [1, 0])
    assert (pos_inf.a, pos_inf.b, pos_inf.first_a, pos_inf.first_b) == (1, 0, [0, 2], None)
    assert (neg_inf.a, neg_inf.b) == (0, 1)
    assert not compare(a, b).same_masks
    assert not compare(a, b).same_kinds


def test_errors_are_at_jointly_finite_positions_only():
    a = torch.tensor([1.0, NAN, 5.0, INF, 2.0])
    b = torch.tensor([1.5, 7.0, INF, INF, 2.0])
    errors = compare(a, b).errors
    assert (errors.compared, errors.max_abs, errors.first) == (2, 0.5, [0])
    assert errors.max_rel == pytest.approx(0.5 / 1.5)


def test_the_floor_of_the_denominator_is_stated_and_used():
    errors = compare(torch.tensor([1e-40]), torch.tensor([0.0])).errors
    assert errors.floor == torch.finfo(torch.float32).smallest_normal
    assert errors.max_rel == pytest.approx(1e-40 / errors.floor, rel=1e-4)
    half = compare(torch.tensor([0.0]).half(), torch.tensor([0.0])).errors
    assert half.floor == torch.finfo(torch.float16).smallest_normal


def test_a_reference_says_which_of_two_is_nearer():
    exact = torch.tensor([1 / 3], dtype=torch.float64)
    found = compare(exact.half(), exact.float(), reference=exact)
    assert found.reference_a.max_abs > found.reference_b.max_abs > 0
    assert compare(exact.half(), exact.float()).reference_a is None


def test_nothing_finite_in_common_leaves_no_error():
    assert compare(torch.tensor([NAN]), torch.tensor([1.0])).errors is None
    assert compare(torch.zeros(0), torch.zeros(0)).errors is None


def test_equal_bits():
    t = torch.tensor([NAN, -0.0, INF, 1e-42])
    assert compare(t, t.clone()).bitwise
    assert compare(t, t.clone()).same_masks
    assert not bits_equal(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not bits_equal(torch.tensor([0.0]), torch.tensor([0.0]).double())
    assert bits_equal(
        torch.arange(6).reshape(2, 3).t(), torch.arange(6).reshape(2, 3).t().contiguous()
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_other_dtypes(dtype):
    a, b = torch.tensor([0, 1, 1]).to(dtype), torch.tensor([0, 1, 0]).to(dtype)
    errors = compare(a, b).errors
    assert (errors.max_abs, errors.first) == (1.0, [2])


def test_a_large_tensor_is_compared_piece_by_piece():
    a = torch.zeros(2, 300_000)
    b = a.clone()
    b[1, 299_999] = 3.0
    assert compare(a, b).errors.first == [1, 299_999]


def test_it_is_plain_data():
    found = compare(torch.tensor([1.0, NAN]), torch.tensor([2.0, NAN])).as_dict()
    assert found["same_masks"] is True
    assert found["masks"][0]["kind"] == "nan"
    assert found["errors"]["max_abs"] == 1.0
