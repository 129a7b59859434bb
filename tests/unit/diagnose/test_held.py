"""State that holds a constant which is not finite: what the code placed, and what it did not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.unit.diagnose.cases import analysis_of, first
from workbench.diagnose.analysis import Analysis
from workbench.diagnose.held import sentence

INF, NAN = math.inf, math.nan


class Kept(nn.Module):
    """A model with a buffer that a function writes in forward."""

    def __init__(self, write: Callable[[Tensor, Tensor], object], start: list[float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("best", torch.tensor(start))
        self.write = write

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.write(self.best, x)
        return x * self.weight


def put(index: int, value: float) -> Callable[[Tensor, Tensor], object]:
    def write(best: Tensor, x: Tensor) -> None:
        best[index] = value

    return write


def kept(write: Callable[[Tensor, Tensor], object], *start: float) -> Analysis:
    return analysis_of(Kept(write, list(start)), torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize(
    ("write", "op", "what"),
    [
        (put(0, INF), "copy_", "+Inf"),
        (put(1, NAN), "copy_", "NaN"),
        (lambda best, x: best.fill_(NAN), "fill_", "NaN"),
        (lambda best, x: best.masked_fill_(x > 1, -INF), "masked_fill_", "−Inf"),
        (lambda best, x: best.copy_(torch.full_like(x, INF)), "full_like", "+Inf"),
    ],
)
def test_what_the_code_puts_into_a_buffer_has_no_origin(
    write: Callable[[Tensor, Tensor], object], op: str, what: str
) -> None:
    found = kept(write, 1.0, 2.0)
    assert found.origins == [] and found.absorbed == []
    (held,) = found.slice.held
    graph = found.trace.graph
    assert held.event is not None and graph[held.event].base == op
    assert sentence(held, graph).startswith(
        f"No op computed it: the code itself put {what} into buffer best ("
    )


@pytest.mark.parametrize(
    ("write", "kind", "op"),
    [
        (lambda best, x: best.copy_((x - 1).log()), "birth", "log"),
        (lambda best, x: best.mul_(INF), "birth", "mul_"),
        (lambda best, x: best.fill_((x - 1).log().min().item() * 0), "nonfinite_scalar", "fill_"),
        (lambda best, x: best.copy_(torch.full_like(x, INF) * (x - 1)), "conversion", "mul"),
        (lambda best, x: best.copy_(x.masked_fill(x > 1, INF).mean()), "birth", "mean"),
    ],
)
def test_what_is_computed_on_its_way_into_a_buffer_has_one(
    write: Callable[[Tensor, Tensor], object], kind: str, op: str
) -> None:
    found = kept(write, 1.0, 2.0)
    assert first(found)[:2] == (kind, op)
    assert found.slice.held == []


class Biased(nn.Module):
    """Attention whose learned bias holds -Inf where attention is forbidden."""

    def __init__(self, forbidden: float = -INF) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor([[0.0, forbidden], [0.0, 0.0]]))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ x.T + self.bias).softmax(-1) @ x


class Leap(torch.optim.SGD):
    """Descends, and takes one element to -Inf, as a step far out of proportion does."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step()
        parameter = self.param_groups[0]["params"][0]
        parameter[1].sub_(torch.tensor([3e38, 0.0])).sub_(torch.tensor([3e38, 0.0]))


def stepped(model: nn.Module, optimizer: type[torch.optim.Optimizer], **given: float) -> Analysis:
    torch.manual_seed(0)
    chosen = optimizer(model.parameters(), lr=1e-3, **given)
    return analysis_of(model, torch.randn(2, 2), optimizer=chosen)


@pytest.mark.parametrize(
    ("optimizer", "given"), [(torch.optim.SGD, {}), (torch.optim.AdamW, {"weight_decay": 0.1})]
)
def test_a_parameter_that_held_the_same_minus_inf_before_is_a_mask(
    optimizer: type[torch.optim.Optimizer], given: dict[str, float]
) -> None:
    found = stepped(Biased(), optimizer, **given)
    assert found.origins == []
    assert [held.name for held in found.slice.held] == ["parameter:bias"]
    assert "held the same −Inf before" in sentence(found.slice.held[0], found.trace.graph)


def test_one_minus_inf_more_than_before_is_no_mask() -> None:
    found = stepped(Biased(), Leap)
    assert found.slice.held == [] and found.origins


def test_a_parameter_with_plus_inf_is_poisoned() -> None:
    class Bounded(Biased):
        def forward(self, x: Tensor) -> Tensor:
            return torch.minimum(x, self.bias)

    assert first(stepped(Bounded(INF), torch.optim.SGD))[3] == "poisoned_parameter"


class Lowest(torch.optim.SGD):
    """Keeps the lowest gradient so far, which begins as Inf and is looked at every other step."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter].setdefault("lowest", torch.tensor(INF))
        super().step()


def test_optimizer_state_that_begins_at_inf_is_meant_and_old_inf_in_it_is_not() -> None:
    assert stepped(Biased(0.0), Lowest).origins == []
    model = Biased(0.0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    model(torch.randn(2, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.state[model.bias]["exp_avg"].fill_(-INF)
    found = analysis_of(model, torch.randn(2, 2), optimizer=optimizer)
    assert found.slice.held == [] and found.origins
