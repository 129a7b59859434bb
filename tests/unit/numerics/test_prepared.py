"""What is prepared once gives what is worked out anew: finite test, line of JSON, median."""

import json
import random
import statistics

import numpy as np
import pytest
import torch
from torch import nn

from workbench.errors import UsageError
from workbench.numerics import jsonio
from workbench.numerics.counts import all_finite
from workbench.numerics.finite_test import FiniteTest
from workbench.record.alerts import Usual


def test_the_finite_test_follows_values_and_tensors():
    test = FiniteTest()
    tensors = [nn.Parameter(torch.ones(3)), torch.zeros(2, dtype=torch.int64), torch.ones(2).half()]
    for _ in range(2):
        assert test(tensors)
    before = [t.clone() for t in tensors]
    with torch.no_grad():
        tensors[0][1] = float("nan")
    assert not test(tensors) and not test(tensors)
    with torch.no_grad():
        tensors[0][1] = 1.0
    assert test(tensors)
    assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))
    tensors[0].data = torch.tensor([1.0, float("inf")], dtype=torch.float64)
    assert not test(tensors)
    tensors[0].data = torch.tensor([1, 2], dtype=torch.complex64).real
    assert test(tensors)
    for odd in (
        torch.tensor([1.0, float("nan")]).to_sparse(),
        torch.tensor([complex(1, float("inf"))]),
        torch.tensor([float("nan")]).to(torch.float8_e5m2),
    ):
        assert test([torch.ones(1), odd]) is all_finite([torch.ones(1), odd]) is False
    assert test([]) and test([torch.ones(1, device="meta")])


RECORD = {
    "b": 1, "a": [1e-5, None, True, {"x": "y", "w": -0.0}], "loss": 2.3456789012345678,
    "big": 2**60,
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {}, {"nan": float("nan")}, {"deep": [[{"v": float("-inf")}]]},
        {"text": 'é "\\ \n\x01 null'},
        {"huge": 2**70}, {"np": np.float64(2.5)}, {"array": np.arange(2)}, {"t": torch.ones(2)},
        {"tuple": (1, 2)}, {"set": {"b", "a"}}, {3: 4}, {"half": np.float64("nan")},
        {"sub": {5: 1}}, {"low": 5e-324, "e": 1e22, "f": 1e16, "g": 123456789012345680.0},
    ],
)  # fmt: skip
def test_a_line_says_what_dumps_says(change):
    record = RECORD | change
    line = jsonio.dump_line(record)
    assert line.endswith(b"\n") and line.count(b"\n") == 1 and line.isascii()
    text = jsonio.dumps(record)
    assert json.loads(line) == json.loads(text)
    assert list(json.loads(line)) == list(json.loads(text))
    assert repr(jsonio.loads(line)) == repr(jsonio.loads(text))


def test_a_line_refuses_what_dumps_refuses():
    from datetime import date
    from enum import Enum

    for odd in (date(2026, 1, 1), b"bytes", object(), Enum("E", "a").a, 1j):
        with pytest.raises(UsageError):
            jsonio.dump_line({"odd": [odd]})


def test_the_usual_value_is_the_median_of_the_window():
    random.seed(1)
    for window in (1, 2, 5, 100):
        usual, values = Usual(window), []
        assert usual.median == 0.0
        for _ in range(250):
            values.append(random.choice([random.random(), 1.0, 1e30]))
            usual.add(values[-1])
            assert len(usual) == min(window, len(values))
            assert usual.median == statistics.median(values[-window:])
