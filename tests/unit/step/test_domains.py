import numpy as np
import pytest
import torch

from workbench import Domain
from workbench.step.domains import batch_fields, check_domains


def test_fields_have_paths():
    batch = {"x": torch.ones(1), "y": {"boxes": torch.ones(2)}, "z": [torch.ones(3)], "s": "text"}
    assert [name for name, _ in batch_fields(batch)] == ["x", "y.boxes", "z.0"]
    assert [name for name, _ in batch_fields((torch.ones(1), torch.ones(2)))] == ["0", "1"]
    assert [name for name, _ in batch_fields(torch.ones(1))] == ["batch"]
    assert [name for name, _ in batch_fields({"n": np.ones(2)})] == ["n"]


@pytest.mark.parametrize(
    ("values", "domain", "index"),
    [
        (torch.tensor([0.0, 1.0]), Domain(0, 1), None),
        (torch.tensor([0.0, 1.5]), Domain(0, 1), (1,)),
        (torch.tensor([[0.0], [-1.0]]), Domain(minimum=0), (1, 0)),
        (torch.tensor([0.0, float("inf")]), Domain(), (1,)),
        (torch.tensor([0.0, float("inf")]), Domain(finite=False), None),
        (torch.tensor([0.0, float("inf")]), Domain(maximum=5, finite=False), (1,)),
        (torch.tensor([3, -100, 4]), Domain(0, 9, allowed=(-100,)), None),
        (torch.tensor([3, -100, -7]), Domain(0, 9, allowed=(-100,)), (2,)),
        (torch.tensor([True]), Domain(0, 0), (0,)),
        (torch.zeros(0), Domain(1, 2), None),
        (torch.tensor(5.0), Domain(0, 1), ()),
    ],
)
def test_the_first_value_outside_is_named(values, domain, index):
    found = check_domains([{"f": values}], {"f": domain, "absent": Domain(0, 1)})
    if index is None:
        assert found == ()
    else:
        (violation,) = found
        assert violation.index == index
        assert violation.value == float(values[index] if index else values)
        assert "'f'" in violation.message


def test_numbers_can_be_fields_and_every_micro_batch_is_looked_at():
    found = check_domains([{"n": 3}, {"n": 30}], {"n": Domain(0, 10)})
    assert [(v.micro_step, v.value) for v in found] == [(1, 30.0)]


@pytest.mark.parametrize(
    ("values", "domain", "index", "value", "words"),
    [
        (torch.tensor([0.5, 0.0]), Domain.positive(), (1,), 0.0, "above 0"),
        (torch.tensor([0.5, 1.25]), Domain.probability(), (1,), 1.25, "from 0 to 1"),
        (torch.tensor([[3, 9]]), Domain.tokens(9), (0, 1), 9.0, "from 0 to 8"),
        (torch.tensor([[-100, -100]]), Domain.labels(5), (), 0.0, "must count"),
        (torch.tensor([[1, 1], [0, 0]]), Domain.mask(), (1,), 0.0, "not 0"),
        (torch.zeros(3), Domain.weights(), (), 0.0, "not 0"),
        (torch.zeros(2, 0), Domain(length=(1, None)), (), 0.0, "at least 1 positions"),
        (torch.zeros(2, 9), Domain(length=(1, 8)), (), 9.0, "from 1 to 8 positions"),
    ],
)
def test_lengths_counts_and_open_bounds(values, domain, index, value, words):
    (violation,) = check_domains([{"f": values}], {"f": domain})
    assert (violation.index, violation.value) == (index, value)
    assert words in violation.message
    assert "'f'" in violation.message


@pytest.mark.parametrize(
    ("values", "domain"),
    [
        (torch.tensor([0.5, 1e-30]), Domain.positive()),
        (torch.tensor([[-100, 3]]), Domain.labels(5)),
        (torch.tensor([[True, False], [False, True]]), Domain.mask()),
        (torch.tensor([0.0, 2.0]), Domain.weights()),
        (torch.zeros(2, 8), Domain(length=(1, 8))),
        (torch.tensor([4, 5]), Domain(length=(9, 10))),
    ],
)
def test_what_is_legal_is_not_named(values, domain):
    assert check_domains([{"f": values}], {"f": domain}) == ()
