import math

import pytest
import torch

from workbench.numerics import mask_digest, tensor_digest


def test_every_bit_counts():
    quiet = torch.tensor([0x7FC00000, 0], dtype=torch.int32).view(torch.float32)
    payload = torch.tensor([0x7FC00001, 0], dtype=torch.int32).view(torch.float32)
    negative = torch.tensor([0x7FC00000, -0x80000000], dtype=torch.int32).view(torch.float32)
    digests = {tensor_digest(t) for t in (quiet, payload, negative)}
    assert len(digests) == 3
    assert tensor_digest(quiet.clone()) == tensor_digest(quiet)


def test_dtype_and_shape_count_and_strides_do_not():
    t = torch.zeros(2, 3)
    assert tensor_digest(t) != tensor_digest(t.reshape(3, 2))
    assert tensor_digest(t) != tensor_digest(t.to(torch.int32))
    x = torch.randn(3, 4)
    assert tensor_digest(x.t().contiguous()) == tensor_digest(x.t())


@pytest.mark.parametrize(
    "t",
    [
        torch.tensor(1.0),
        torch.zeros(0, 2),
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(3, dtype=torch.complex128),
        torch.ones(3).to(torch.float8_e5m2),
        torch.tensor([True]),
        torch.eye(2).to_sparse(),
        torch.empty(2, device="meta"),
        torch.nn.Parameter(torch.ones(2)),
        torch.ones(2, dtype=torch.complex64).conj(),
    ],
)
def test_every_kind_of_tensor_has_one(t):
    assert len(tensor_digest(t)) == len(mask_digest(t)) == 64


def test_masks_are_kept_apart_by_sign_and_place():
    nan, inf = math.nan, math.inf
    rows = [
        [0, 1, 2],
        [nan, 1, 2],
        [inf, 1, 2],
        [-inf, 1, 2],
        [1, nan, 2],
        [nan, nan, 2],
        [1, inf, nan],
    ]
    assert len({mask_digest(torch.tensor(row, dtype=torch.float32)) for row in rows}) == len(rows)


def test_finite_values_do_not_count_in_a_mask():
    a, b = torch.randn(4, 5), torch.randn(4, 5)
    a[1, 2] = b[1, 2] = math.nan
    assert mask_digest(a) == mask_digest(b) == mask_digest(b.double())
    assert mask_digest(a) != mask_digest(a.reshape(5, 4))


def test_a_mask_of_a_sparse_tensor_is_that_of_its_elements():
    t = torch.tensor([[0.0, math.inf], [0.0, 1.0]])
    assert mask_digest(t.to_sparse()) == mask_digest(t)
