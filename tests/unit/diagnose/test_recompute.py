"""Range or domain, by recomputing one op from its real inputs in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.unit.diagnose.cases import Through, analysis_of
from workbench.diagnose.recompute import recompute


@pytest.mark.parametrize(
    ("function", "x", "expected"),
    [
        (lambda x: x.exp(), [100.0], "overflow"),
        (lambda x: x.log(), [0.0], "domain"),
        (lambda x: x.sqrt(), [-1.0], "domain"),
        (lambda x: x.half() * 1000, [100.0], "overflow"),
        (lambda x: x.half(), [1e6], "overflow"),
        (lambda x: x / (x - x), [1.0], "domain"),
        (lambda x: (x * 1e30) ** 2, [1.0], "overflow"),
        (lambda x: x.bfloat16() * 3e38, [30.0], "overflow"),
    ],
)
def test_range_of_an_origin(function: Any, x: list[float], expected: str) -> None:
    found = analysis_of(Through(function), torch.tensor(x))
    assert found.origins[0].case.range == expected


def test_recomputation_is_the_op_in_float64() -> None:
    x = torch.tensor([90.0, 1.0])
    found = analysis_of(Through(lambda x: x.exp()), x)
    case = found.origins[0].case
    kept = case.kept[case.origin.event]
    wide = recompute(kept)
    assert wide is not None and wide.dtype == torch.float64
    assert torch.equal(wide, x.double().exp())
    assert kept.args[0].dtype == torch.float32  # what was kept stays as it was


def test_underflow_upstream_is_a_contributor() -> None:
    found = analysis_of(Through(lambda x: x.softmax(-1).log()), torch.tensor([[200.0, 0.0, 0.0]]))
    makers = found.origins[0].case.zero_makers()
    assert [(found.trace.graph[i].base, n) for i, n in makers] == [("_softmax", 2)]
