"""Range or domain, by recomputing one op from its real inputs in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.unit.diagnose.cases import Through, analysis_of, first
from workbench.diagnose.causes.float32_overflow import CAUSE as FLOAT32
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


def hidden_keys(scale: float) -> Any:
    """Attention with huge scores under a causal mask of -Inf."""

    def attend(x: torch.Tensor) -> torch.Tensor:
        query = x.view(2, 4, 12, 8)
        mask = torch.full((12, 12), -torch.inf).triu(1)
        key = query.flip(-1).sin()
        return functional.scaled_dot_product_attention(query * scale, key, query, attn_mask=mask)

    return attend


def test_an_attention_whose_scores_are_huge_fails_in_backward_alone() -> None:
    # forward's log-sum-exp is rounded by more than exp can take; its mask has no part in it
    torch.manual_seed(0)
    found = analysis_of(Through(hidden_keys(1e12)), torch.randn(768))
    op = "_scaled_dot_product_flash_attention_for_cpu_backward"
    assert first(found) == ("birth", op, "backward", "float32_overflow")
    judged = found.origins[0]
    assert judged.cause.explain(judged.case).startswith(f"On its way to a result, aten.{op}")
    assert not analysis_of(Through(hidden_keys(1.0)), torch.randn(768)).origins


def test_a_result_that_is_too_large_is_told_from_one_computed_on_the_way() -> None:
    for function, said in (
        (lambda x: x.exp(), "aten.exp.default gives more than"),
        (lambda x: functional.layer_norm(x * 1e30, (2,)), "On its way to a result, aten.native_l"),
    ):
        judged = analysis_of(Through(function), torch.tensor([90.0, 1.0])).origins[0]
        assert FLOAT32.explain(judged.case).startswith(said)
