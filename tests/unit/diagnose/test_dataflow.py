"""The origin is right however a tensor's memory came to be written."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.unit.diagnose.cases import Through, analysis_of, first

X = torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
ZEROS = torch.zeros(2, 3)


def summed(out: torch.Tensor, batch: object) -> torch.Tensor:
    return out.sum()


def view_of_view(t: torch.Tensor) -> torch.Tensor:
    return t.view(3, 2).t()[0].log()


def in_place_on_a_view(t: torch.Tensor) -> torch.Tensor:
    t = t.clone()
    t[0].log_()
    return t


def overlapping_view(t: torch.Tensor) -> torch.Tensor:
    b = t.detach().clone()
    b.as_strided((2, 2), (3, 1)).log_()
    return t + b


def out_variant(t: torch.Tensor) -> torch.Tensor:
    b = torch.empty(2, 3)
    with torch.no_grad():
        torch.log(t.detach(), out=b)
    return t + b


def swapped_data(t: torch.Tensor) -> torch.Tensor:
    b = torch.ones(3)
    b.data = torch.zeros(3)
    return t * b.log()


def foreach(t: torch.Tensor) -> torch.Tensor:
    return torch.stack(torch._foreach_log([t[1], t[0]]))


def foreach_in_place(t: torch.Tensor) -> torch.Tensor:
    rows = [t[1].clone(), t[0].clone()]
    torch._foreach_log_(rows)
    return torch.stack(rows)


def per_sample(t: torch.Tensor) -> torch.Tensor:
    return torch.func.vmap(lambda row: row.log().sum())(t)


def complex_log(t: torch.Tensor) -> torch.Tensor:
    return torch.complex(t, t).log().abs()


def recomputed(t: torch.Tensor) -> Any:
    return checkpoint(lambda u: u.log(), t, use_reentrant=False)


@pytest.mark.parametrize(
    "function",
    [
        view_of_view,
        in_place_on_a_view,
        overlapping_view,
        out_variant,
        swapped_data,
        foreach,
        foreach_in_place,
        per_sample,
        complex_log,
        recomputed,
    ],
)
def test_a_log_of_zero_in_forward(function: Any) -> None:
    kind, op, stage, cause = first(analysis_of(Through(function), X))
    assert (kind, op.strip("_").removeprefix("foreach_"), stage) == ("birth", "log", "forward")
    assert cause == "log_of_zero"


def root(u: torch.Tensor) -> torch.Tensor:
    return (u**2).sum(0).sqrt()


def second_derivative(t: torch.Tensor) -> torch.Tensor:
    gradient, *_ = torch.autograd.grad((t**3).sum(), t, create_graph=True)
    return gradient.pow(2).sum(1).sqrt()


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("plain", root),
        ("reentrant", lambda t: checkpoint(root, t, use_reentrant=True)),
        ("not reentrant", lambda t: checkpoint(root, t, use_reentrant=False)),
        ("double backward", second_derivative),
        ("functional gradient", lambda t: torch.func.vmap(torch.func.grad(root))(t.t())),
        ("spectrum", lambda t: torch.view_as_real(torch.fft.fft(t)).pow(2).sum(-1).sqrt()),
    ],
)
def test_a_root_at_zero_in_backward_belongs_to_the_module(name: str, function: Any) -> None:
    found = analysis_of(Through(function), ZEROS, loss=summed)
    assert first(found)[3] == "singular_gradient", name
    event = found.origins[0].case.event
    assert event is not None
    assert event.where == "module", name
    assert event.source.startswith("test_dataflow.py"), name


class Divides(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(t)
        return t.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (t,) = ctx.saved_tensors
        return gradient / t


def test_a_custom_backward_has_its_own_line() -> None:
    found = analysis_of(Through(Divides.apply), X, loss=summed)
    assert first(found) == ("birth", "div", "backward", "division_by_zero")
    event = found.origins[0].case.event
    assert event is not None
    assert (event.node, event.user_code) == ("DividesBackward", True)


class Hooked(nn.Module):
    """A layer whose gradient a user's hook divides by zero, on the tensor or on the parameter."""

    def __init__(self, on_parameter: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.on_parameter = on_parameter

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.on_parameter:
            self.layer.weight.register_post_accumulate_grad_hook(_divide_gradient)
            return self.layer(x)
        y = self.layer(x)
        y.register_hook(lambda g: g / g.sub(g).norm())
        return y


def _divide_gradient(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.div_(parameter.grad.sum() * 0)


@pytest.mark.parametrize("on_parameter", [False, True])
def test_a_users_hook_is_where_its_line_is(on_parameter: bool) -> None:
    found = analysis_of(Hooked(on_parameter), X)
    assert first(found)[1:] == ("div_" if on_parameter else "div", "backward", "division_by_zero")
    event = found.origins[0].case.event
    assert event is not None
    assert event.source.startswith("test_dataflow.py")


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3, sparse=True)
        nn.init.zeros_(self.table.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x).pow(2).sum(-1).sqrt()


def test_sparse_gradients_of_an_embedding() -> None:
    found = analysis_of(Sparse(), torch.tensor([1, 2, 2]), loss=summed)
    assert first(found) == ("birth", "div", "backward", "singular_gradient")


class ChannelsLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Conv2d(3, 4, 3, padding=1).to(memory_format=torch.channels_last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x.to(memory_format=torch.channels_last))
        return y.relu().amin((2, 3)).log()


def test_channels_last_convolutions() -> None:
    assert first(analysis_of(ChannelsLast(), torch.randn(2, 3, 4, 4)))[1:] == (
        "log", "forward", "log_of_zero",
    )  # fmt: skip


def test_a_fused_optimizer_is_judged_per_parameter() -> None:
    model = Through(lambda t: t * 1.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=0.0, fused=True)
    found = analysis_of(model, ZEROS, optimizer=optimizer)
    assert first(found) == ("birth", "_fused_adamw_", "update", "zero_over_zero")


def numpy_write(t: torch.Tensor) -> torch.Tensor:
    b = t.detach().clone()
    b.numpy()[0, 0] = np.nan
    return t + b


def made_in_a_thread(t: torch.Tensor) -> torch.Tensor:
    made: list[torch.Tensor] = []
    _in_thread(lambda: made.append(torch.zeros(2, 3).log() * 0))
    return t + made[0]


def written_in_a_thread(t: torch.Tensor) -> torch.Tensor:
    b = torch.ones(2, 3)
    _in_thread(lambda: b.mul_(0).reciprocal_().mul_(0))
    return t + b


def read_in_place_after_a_thread(t: torch.Tensor) -> torch.Tensor:
    b = torch.ones(2, 3)
    _in_thread(lambda: b.mul_(0).reciprocal_().mul_(0))
    b.add_(1.0)
    return t + b


def _in_thread(work: Any) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    "function",
    [numpy_write, made_in_a_thread, written_in_a_thread, read_in_place_after_a_thread],
)
def test_what_no_traced_op_wrote_is_unseen_and_not_born_where_it_is_read(function: Any) -> None:
    found = analysis_of(Through(function), X)
    assert (first(found)[0], first(found)[3]) == ("unseen_write", "written_outside")
    assert found.trace.threads == (function is not numpy_write)


def test_a_tensor_of_a_thread_that_was_there_before_is_only_said_to_be_first_seen() -> None:
    pool = ThreadPoolExecutor(1)
    pool.submit(int).result()

    class Pooled(Through):
        def __deepcopy__(self, memo: Any) -> Any:
            return self

    model = Pooled(lambda t: t + pool.submit(lambda: torch.zeros(2, 3).log() * 0).result())
    found = analysis_of(model, X)
    assert first(found)[0] == "captured_tensor"
    assert "tensor seen at" in (found.origins[0].origin.leaf or "")
    pool.shutdown()


@pytest.mark.parametrize(
    ("function", "made_by"),
    [
        (lambda t: t + float("nan"), None),
        (lambda t: t * (float(t.detach().sum()) * math.inf * 0), None),
        (lambda t: t / t.detach().std(dim=0).mean().item(), "mean"),
    ],
)
def test_a_python_number_that_is_not_finite_is_a_cause(function: Any, made_by: str | None) -> None:
    found = analysis_of(Through(function), X[:1])
    assert first(found)[0] == "nonfinite_scalar"
    judged = found.origins[0]
    assert judged.cause is not None
    assert judged.cause.label == "nonfinite_number"
    said = judged.cause.explain(judged.case)
    assert "was NaN; the tensors were finite" in said
    assert (f"aten.{made_by}" in said) if made_by else ("came from" not in said)


def test_independent_origins_are_reported_in_order() -> None:
    found = analysis_of(Through(lambda t: (t[1:] - 10).sqrt().sum() + t[:1].log().sum()), X)
    assert [(j.case.base, j.cause.label if j.cause else None) for j in found.origins] == [
        ("sqrt", "sqrt_of_negative"),
        ("log", "log_of_zero"),
    ]


class ReadsItsStatistics(nn.Module):
    """A loss over a running variance that this very step's batch made infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.norm(x)
        return self.norm.weight * self.norm.running_var.clone()


def test_batch_norm_writes_its_statistics_though_its_schema_does_not_say_so() -> None:
    batch = torch.tensor([[3e38, 1.0], [1e38, 2.0], [2e38, 4.0]])
    kind, op, stage, _ = first(analysis_of(ReadsItsStatistics(), batch, loss=summed))
    assert (kind, stage) == ("birth", "forward")
    assert op == "native_batch_norm"
