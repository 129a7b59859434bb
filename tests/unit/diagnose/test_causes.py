"""One small step for every cause: its rule holds there, and no earlier rule takes it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.unit.diagnose.cases import Through, analysis_of, first
from workbench.diagnose.analysis import Analysis
from workbench.diagnose.causes import all_causes

INF, NAN = math.inf, math.nan
CASES: dict[str, Callable[[], Analysis]] = {}


def case(label: str) -> Callable[[Callable[[], Analysis]], Callable[[], Analysis]]:
    def add(function: Callable[[], Analysis]) -> Callable[[], Analysis]:
        CASES[label] = function
        return function

    return add


def forward_only(function: Any, *values: float, **step: Any) -> Analysis:
    return analysis_of(Through(function), torch.tensor(list(values)), **step)


def with_scaler(scale: float) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale)


CASES |= {
    "log_of_zero": lambda: forward_only(torch.log, 0.0, 1.0),
    "log_of_negative": lambda: forward_only(torch.log1p, -2.0, 1.0),
    "sqrt_of_negative": lambda: forward_only(torch.sqrt, -1e-7, 1.0),
    "power_of_negative": lambda: forward_only(lambda x: x**1.5, -2.0, 1.0),
    "domain_of_inverse_trig": lambda: forward_only(torch.acos, 1.001, 0.5),
    "zero_over_zero": lambda: forward_only(lambda x: x / x.abs(), 0.0, 1.0),
    "division_by_zero": lambda: forward_only(lambda x: 1 / x, 0.0, 1.0),
    "empty_reduction": lambda: forward_only(lambda x: x[x > 5].mean() + x, 1.0),
    "too_few_samples": lambda: forward_only(lambda x: x[:1].var() + x, 1.0, 2.0),
    "exp_overflow": lambda: forward_only(torch.exp, 100.0),
    "cast_overflow": lambda: forward_only(lambda x: x.half().float(), 1e6),
    "low_precision_overflow": lambda: forward_only(lambda x: (x.half() * 300).float(), 400.0),
    "float32_overflow": lambda: forward_only(lambda x: x * 1e30 * 1e30, 1.0),
    "epsilon_underflow": lambda: forward_only(
        lambda x: torch.rsqrt(x.half() * 0 + 1e-9).float(), 1.0
    ),
    "mask_sum_overflow": lambda: forward_only(
        lambda x: (x.half() + torch.finfo(torch.float16).min).float(), -100.0
    ),
    "fully_masked_softmax": lambda: forward_only(
        lambda x: x.masked_fill(x > 0, -INF).softmax(-1), 1.0, 2.0
    ),
    "inf_minus_inf": lambda: forward_only(
        lambda x: x.masked_fill(x > 0, -INF) - x.masked_fill(x > 0, -INF), 1.0
    ),
    "zero_times_inf": lambda: forward_only(lambda x: (x * 0) * x.masked_fill(x > 0, INF), 1.0),
    "unselected_branch_gradient": lambda: forward_only(
        lambda x: torch.where(x > 0, x, (x * 1000).exp()), 1.0
    ),
    "singular_gradient": lambda: forward_only(lambda x: (x * x).sum().sqrt(), 0.0),
    "constant_not_representable": lambda: forward_only(
        lambda x: x.half().masked_fill(x > 0, -1e9), 1.0
    ),
    "bad_batch": lambda: forward_only(lambda x: x, NAN, 1.0),
    "gamma_pole": lambda: forward_only(torch.lgamma, 0.0, 1.0),
    "infinite_constant": lambda: forward_only(lambda x: x.masked_fill(x > 0, INF).amin(), 1.0),
    "singular_matrix": lambda: forward_only(
        lambda x: torch.linalg.cholesky(torch.outer(x, x)), 1.0, 2.0
    ),
}


@case("inf_in_masked_class")
def _masked_class() -> Analysis:
    def loss(out: torch.Tensor, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(
            out[None].masked_fill(torch.tensor([False, True]), -INF),
            torch.tensor([0]),
            label_smoothing=0.1,
        )

    return forward_only(lambda x: x, 1.0, 2.0, loss=loss)


@case("bad_label")
def _label() -> Analysis:
    batch = {"x": torch.ones(2), "y": torch.tensor([1.0, NAN])}
    return analysis_of(
        Through(lambda x: x),
        batch,
        forward=lambda model, batch: model(batch["x"]),
        loss=lambda out, batch: (out - batch["y"]).pow(2).mean(),
    )


@case("label_out_of_range")
def _out_of_range() -> Analysis:
    def loss(out: torch.Tensor, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(out[None], torch.tensor([7]))

    return forward_only(lambda x: x, 1.0, 2.0, loss=loss)


@case("infeasible_target")
def _ctc() -> Analysis:
    def loss(out: torch.Tensor, batch: Any) -> torch.Tensor:
        target, one = torch.tensor([[1, 1, 1]]), torch.tensor([3])
        return functional.ctc_loss(out.log_softmax(-1), target, torch.tensor([2]), one)

    return analysis_of(Through(lambda x: x), torch.randn(2, 1, 4), loss=loss)


@case("logging_only")
def _logging() -> Analysis:
    from tests.unit.replay.traced import FunctionStep

    def log(self: Any, loss: torch.Tensor, outputs: Any, model: nn.Module) -> None:
        if not math.isfinite(float((loss.detach() * 1e4).exp())):
            raise ValueError("Out of range float values are not JSON compliant")

    original = FunctionStep.log
    FunctionStep.log = log  # type: ignore[method-assign]
    try:
        return forward_only(lambda x: x, 1.0)
    finally:
        FunctionStep.log = original  # type: ignore[method-assign]


def poisoned(where: str) -> Analysis:
    model = nn.BatchNorm1d(2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    with torch.no_grad():
        if where == "parameter":
            model.weight[0] = NAN
        elif where == "buffer":
            model.running_mean[0] = NAN
            model.eval()
        else:
            bad = torch.tensor([NAN, 0.0])
            optimizer.state[model.weight]["momentum_buffer"] = bad
    return analysis_of(model, torch.randn(3, 2), optimizer=optimizer)


CASES |= {
    "poisoned_parameter": lambda: poisoned("parameter"),
    "poisoned_buffer": lambda: poisoned("buffer"),
    "poisoned_optimizer_state": lambda: poisoned("optimizer_state"),
}


@case("nonfinite_hyperparameter")
def _learning_rate() -> Analysis:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.param_groups[0]["lr"] = INF
    return analysis_of(model, torch.randn(3, 2), optimizer=optimizer)


@case("nonfinite_number")
def _number() -> Analysis:
    return analysis_of(Through(lambda x: x * float("nan")), torch.ones(2))


@case("written_outside")
def _outside() -> Analysis:
    def write(x: torch.Tensor) -> torch.Tensor:
        copy = x.detach().clone()
        copy.numpy()[0] = float("nan")
        return x + copy

    return analysis_of(Through(write), torch.ones(2))


@case("uninitialised_memory")
def _uninitialised() -> Analysis:
    def read(x: torch.Tensor) -> torch.Tensor:
        torch.use_deterministic_algorithms(True)  # fills empty memory with NaN
        buffer = torch.empty(1)
        torch.use_deterministic_algorithms(False)
        return x * buffer

    return forward_only(read, 1.0)


def adam(**state: Any) -> Analysis:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    x = torch.randn(3, 2)
    model(x).pow(2).mean().backward()
    optimizer.step()
    for one in optimizer.state.values():
        one |= {name: torch.full_like(one[name], value) for name, value in state.items()}
    return analysis_of(model, x, optimizer=optimizer)


class StepCounterAdam(torch.optim.Optimizer):
    """Adam with a counter that was restored as 0."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter.sub_(parameter.grad / (1 - 0.9 ** torch.tensor(0.0)))


@case("optimizer_state_invalid")
def _negative_moment() -> Analysis:
    return adam(exp_avg_sq=-1.0)


@case("bias_correction")
def _bias_correction() -> Analysis:
    model = nn.Linear(2, 1)
    return analysis_of(model, torch.randn(3, 2), optimizer=StepCounterAdam(model.parameters()))


@case("optimizer_epsilon_underflow")
def _optimizer_eps() -> Analysis:
    model = nn.Embedding(4, 2).half()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    return analysis_of(
        model,
        torch.tensor([0, 1]),
        optimizer=optimizer,
        loss=lambda out, batch: out.float().pow(2).mean(),
    )


@case("scale_collapse")
def _scale_collapse() -> Analysis:
    def loss(out: torch.Tensor, batch: Any) -> torch.Tensor:
        total = out.sum()
        return (total - total.detach() + 1) * 1e37  # finite, with a gradient a hundred times larger

    return forward_only(lambda x: x, 100.0, loss=loss, scaler=with_scaler(1e-3))


class GrowingScaler:
    """A home-made scaler without a cap."""

    def __init__(self) -> None:
        self.value = torch.tensor(1e30)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * 1.0

    def unscale_(self, optimizer: Any) -> None:
        """Nothing to do."""

    def step(self, optimizer: Any) -> None:
        optimizer.step()

    def update(self) -> None:
        self.value = self.value * torch.tensor(1e10)

    def get_scale(self) -> float:
        return float(self.value)


@case("scale_overflow")
def _scale_overflow() -> Analysis:
    return forward_only(lambda x: x, 1.0, scaler=GrowingScaler())


@case("norm_overflow")
def _norm() -> Analysis:
    return analysis_of(
        nn.Linear(4, 1),
        torch.ones(2, 4),
        loss=lambda out, batch: out.sum() * 1e25,
        max_grad_norm=1.0,
    )


class HalfWeights(nn.Module):
    """Half-precision weights, float32 outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, dtype=torch.float16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * x.half()).float()


class UncheckedScaler(GrowingScaler):
    """Scales the loss and steps whatever the gradients are."""

    def __init__(self) -> None:
        self.value = torch.tensor(4096.0)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * self.value

    def update(self) -> None:
        """Keep the scale."""


def scaled_overflow(**step: Any) -> Analysis:
    x = torch.tensor([100.0, 1.0])
    return analysis_of(
        HalfWeights(), x, loss=lambda out, batch: out.sum(), scaler=UncheckedScaler(), **step
    )


CASES |= {
    "scaled_gradient_overflow": scaled_overflow,
    "clip_of_nonfinite": lambda: scaled_overflow(max_grad_norm=1.0),
}


NEEDS_A_BUNDLE = {"learning_rate": "test_growth.py", "exploding_gradient": "test_growth.py"}


@pytest.mark.parametrize("label", sorted(CASES))
def test_cause(label: str) -> None:
    found = CASES[label]()
    assert first(found)[3] == label
    judged = found.origins[0]
    assert judged.cause is not None
    text = judged.cause.explain(judged.case)
    assert text.endswith(".") and "\n" not in text


@pytest.mark.parametrize(
    ("function", "label"),
    [
        (lambda x: torch.where(x > 0, x.sqrt(), x + 1), "unselected_branch_gradient"),
        (lambda x: torch.where(x == 0, x + 1, x / x), "unselected_branch_gradient"),
        (lambda x: x.sqrt().masked_fill(x == 0, 1.0), "unselected_branch_gradient"),
        (lambda x: torch.where(x < 5, x.sqrt(), x), "singular_gradient"),
    ],
)
def test_a_gradient_of_zero_sent_by_a_selection_is_told_from_any_other(
    function: Any, label: str
) -> None:
    assert first(forward_only(function, 0.0, 1.0))[3] == label


@pytest.mark.parametrize(
    ("function", "values", "label"),
    [
        (lambda x: torch.xlogy(x + 1, x), (0.0, 1.0), "log_of_zero"),
        (lambda x: torch.complex(x, x).log().abs(), (0.0, 1.0), "log_of_zero"),
        (lambda x: torch.xlogy(x + 3, x), (-1.0, 1.0), "log_of_negative"),
        (lambda x: torch.special.xlog1py(x + 3, x), (-1.0, 1.0), "log_of_zero"),
        (torch.special.entr, (-1.0, 0.5), "log_of_negative"),
        (lambda x: x % (x * 0), (1.0, 2.0), "division_by_zero"),
        (lambda x: torch.fmod(x, x * 0), (1.0, 2.0), "division_by_zero"),
        (lambda x: x // (x * 0), (1.0, 2.0), "division_by_zero"),
        (torch.digamma, (-2.0, 1.0), "gamma_pole"),
        (lambda x: torch.polygamma(1, x), (0.0, 1.0), "gamma_pole"),
        (lambda x: x.masked_fill(x > 1.5, INF).softmax(0), (1.0, 2.0), "inf_minus_inf"),
        (lambda x: x[x > 9].median() + x, (1.0, 2.0), "empty_reduction"),
        (lambda x: torch.linalg.inv(torch.outer(x, x))[0], (1.0, 2.0), "singular_matrix"),
    ],
)
def test_an_op_of_a_family_has_the_cause_of_its_family(
    function: Any, values: tuple[float, ...], label: str
) -> None:
    assert first(forward_only(function, *values))[3] == label


def test_every_cause_has_a_case() -> None:
    labels = {cause.label for cause in all_causes()}
    assert labels == CASES.keys() | NEEDS_A_BUNDLE.keys()


def test_texts_claim_no_more_than_the_evidence() -> None:
    for cause in all_causes():
        for text in (cause.fix, cause.limits):
            assert text.endswith("."), cause.label
            lowered = text.lower()
            assert not any(word in lowered for word in ("root cause", "fixed", "success"))


def test_logging_alone_is_said_only_where_the_update_was_seen_to_be_finite() -> None:
    found = CASES["logging_only"]()
    judged = found.origins[0]
    assert judged.cause is not None and judged.cause.label == "logging_only"
    for hidden in (
        replace(
            found.trace, outcomes=[o for o in found.trace.outcomes if o.unit.stage != "update"]
        ),
        replace(found.trace, contaminated={"parameters": ["weight"]}),
        replace(found.trace, loss_finite=False),
    ):
        assert not judged.cause.rule(replace(judged.case, trace=hidden))
