"""Other forms in which a cause comes: other ops, other dtypes, the op in backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.unit.diagnose.cases import Through, analysis_of, first
from workbench.diagnose.analysis import Analysis

INF = math.inf
Function = Callable[[torch.Tensor], torch.Tensor]


def analysed(function: Function, *values: float) -> Analysis:
    return analysis_of(Through(function), torch.tensor(list(values)))


def straight_through(x: torch.Tensor) -> torch.Tensor:
    """Bounded in forward; the gradient doubles 200 times."""
    for _ in range(200):
        x = x * 2
        x = x + (x.clamp(-1, 1) - x).detach()
    return x


def unreachable_state(x: torch.Tensor) -> torch.Tensor:
    """A row of nothing but -Inf, beside one that is finite."""
    return torch.stack([x, x + torch.full_like(x, -INF)]).logsumexp(1).logsumexp(0)


def frozen_normalisation(x: torch.Tensor) -> torch.Tensor:
    return functional.batch_norm(x[None], torch.zeros(2), torch.tensor([-1.0, 1.0])).sum()


def impossible_event(x: torch.Tensor) -> torch.Tensor:
    """Torch's own code writes an Inf, and the mean takes it with the rest."""
    events = torch.distributions.Bernoulli(x)
    return torch.distributions.kl_divergence(
        events, torch.distributions.Bernoulli(torch.tensor([0.5, 0.0]))
    ).mean()


def mean_of_segments(x: torch.Tensor) -> torch.Tensor:
    return torch.segment_reduce(x, "mean", lengths=torch.tensor([2, 0]), unsafe=True)


def divided_in_python(x: torch.Tensor) -> torch.Tensor:
    return x * (1 / int(x.numel() > 99))


@pytest.mark.parametrize(
    ("function", "values", "place", "label"),
    [
        (torch.logit, (1.0, 0.5), "logit", "log_of_zero"),
        (torch.logit, (1.5, 0.5), "logit", "log_of_negative"),
        (lambda x: torch.diag(x).logdet() + x, (-1.0, 2.0), "scalar_tensor", "log_of_negative"),
        (torch.cosh, (-100.0, 1.0), "cosh", "exp_overflow"),
        (lambda x: x.exp() / x.exp().sum(), (200.0, 1.0), "exp", "exp_overflow"),
        (lambda x: torch.tanh((1 + x.exp()).log()), (200.0, 1.0), "mul", "exp_overflow"),
        (lambda x: x.half().clamp(min=1e-8).log().float(), (0.0, 1.0), "log", "epsilon_underflow"),
        (
            lambda x: functional.normalize(x.half()[:, None]).float(),
            (0.0, 1.0),
            "div",
            "epsilon_underflow",
        ),
        (frozen_normalisation, (1.0, 2.0), "native_batch_norm", "sqrt_of_negative"),
        (straight_through, (1.0, 2.0), "mul", "exploding_gradient"),
        (unreachable_state, (1.0, 2.0), "sub", "inf_minus_inf"),
        (divided_in_python, (1.0, 2.0), "", "division_by_zero"),
        (impossible_event, (0.5, 0.5), "mean", "infinite_constant"),
        (mean_of_segments, (1.0, 2.0), "segment_reduce", "empty_reduction"),
        (lambda x: x * INF, (1.0, 2.0), "mul", "nonfinite_number"),
    ],
)
def test_a_cause_is_named_where_it_comes_in_another_form(
    function: Function, values: tuple[float, ...], place: str, label: str
) -> None:
    found = analysed(function, *values)
    _, base, _, cause = first(found)
    assert cause == label
    assert base in (place, f"_{place}_legit_no_training")
    judged = found.origins[0]
    assert judged.cause is not None
    text = judged.cause.explain(judged.case)
    assert text.endswith(".") and "\n" not in text


@pytest.mark.parametrize(
    ("function", "label"),
    [
        (lambda x: torch.nan_to_num(x.log(), neginf=0.0), "unselected_branch_gradient"),
        (lambda x: x.sqrt().clamp(min=0.1), "unselected_branch_gradient"),
        (lambda x: torch.maximum(x.sqrt(), torch.full_like(x, 0.1)), "unselected_branch_gradient"),
        (lambda x: x.sqrt() * (x > 0).float() + 1, "unselected_branch_gradient"),
        (lambda x: x.sqrt()[x > 0], "unselected_branch_gradient"),
        (lambda x: x.sqrt()[[1, 1]] + x, "unselected_branch_gradient"),
        (lambda x: x.sqrt()[x < 5], "singular_gradient"),
        (lambda x: x.sqrt() * (3 * x) + 1, "singular_gradient"),
        # the sigmoid behind it is flat at infinity, but never met the Inf
        (lambda x: x.reciprocal()[1:].sigmoid(), "unselected_branch_gradient"),
        (lambda x: x.reciprocal().tanh(), "zero_times_inf"),
    ],
)
def test_limits_and_masks_leave_out_as_where_does(function: Function, label: str) -> None:
    assert first(analysed(function, 0.0, 1.0))[3] == label


def test_an_infinity_over_an_infinity_is_not_told_as_a_product_with_zero() -> None:
    found = analysed(lambda x: x.masked_fill(x > 0, INF) / x.masked_fill(x > 0, INF), 1.0, -1.0)
    judged = found.origins[0]
    assert judged.cause is not None
    assert "divided by an infinity" in judged.cause.explain(judged.case)


def test_a_tensor_from_outside_of_the_model_is_told_as_such() -> None:
    outside = torch.tensor([1.0, INF])

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))
            self.memory = torch.tensor([1.0, math.nan])

        def forward(self, x: Any) -> torch.Tensor:
            return x * self.weight * outside + self.memory

    found = analysis_of(Model(), torch.ones(2)).origins
    assert {judged.origin.kind for judged in found} == {"captured_tensor"}
    assert "memory" in [judged.origin.leaf for judged in found]
    for judged in found:
        assert judged.cause is not None and judged.cause.label == "poisoned_buffer"
        assert "no parameter, no buffer and not in" in judged.cause.explain(judged.case)


def test_ones_times_minus_infinity_make_a_mask_and_no_origin() -> None:
    found = analysed(lambda x: (x + (torch.ones(2, 2) * -INF).triu(1)).softmax(-1), 1.0, 2.0)
    assert found.origins == [] and found.trace.loss_finite


def test_a_bias_correction_is_one_minus_a_power_and_no_mean_of_squares() -> None:
    class Own(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: object = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                parameter.sub_(self.weighed(parameter.grad))

    class Corrected(Own):
        def weighed(self, gradient: torch.Tensor) -> torch.Tensor:
            return gradient / (1 - torch.tensor(0.9) ** 0)

    class Factored(Own):
        def weighed(self, gradient: torch.Tensor) -> torch.Tensor:
            return gradient / (gradient**2).mean()

    def cause(optimizer: type[torch.optim.SGD]) -> str | None:
        model = Through(lambda x: x * 0)
        chosen = optimizer(model.parameters(), 0.1)
        return first(analysis_of(model, torch.ones(2), optimizer=chosen))[3]

    assert cause(Corrected) == "bias_correction"
    assert cause(Factored) == "zero_over_zero"


@pytest.mark.parametrize(
    ("function", "value", "said"),
    [
        (torch.sqrt, -2e9, "is −2e9."),
        (torch.sqrt, -1e-7, "is −1e-7, as rounding alone can make it."),
        (torch.acos, 1.0000001, "by 1.192e-7, as rounding alone can make it."),
        (torch.acosh, -4.0, "by 5."),
        (lambda x: 1 / x.clamp(max=1e-40) * 1e30, 0.5, "by numbers as small as 1e-40."),
        (lambda x: x + torch.zeros(2) * -INF, 1.0, "by the number −Inf: 0 × Inf is NaN."),
    ],
)
def test_a_sentence_says_how_far_a_value_lies_outside(
    function: Function, value: float, said: str
) -> None:
    judged = analysed(function, value, value).origins[0]
    assert judged.cause is not None
    assert judged.cause.explain(judged.case).endswith(said)


def test_a_sum_over_ignored_labels_divided_by_their_number_says_so() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        labels = torch.full((3,), -100)
        total = functional.cross_entropy(x.view(3, 4), labels, reduction="sum")
        return total / (labels != -100).sum()

    judged = analysis_of(Through(loss), torch.ones(12)).origins[0]
    assert judged.cause is not None and judged.cause.label == "zero_over_zero"
    assert "no label counts" in judged.cause.explain(judged.case)
    other = analysis_of(Through(lambda x: x / x.abs()), torch.zeros(1)).origins[0]
    assert other.cause is not None and "label" not in other.cause.explain(other.case)
