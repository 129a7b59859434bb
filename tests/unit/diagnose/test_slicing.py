"""Slicing: what reaches the sink counts, not what is non-finite first."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.unit.diagnose.cases import Through, analysis_of, first

INF, NAN = math.inf, math.nan


def test_an_intended_mask_is_no_origin() -> None:
    mask = torch.full((3, 3), -INF).triu(1)
    found = analysis_of(Through(lambda x: (x + mask).softmax(-1)), torch.randn(3, 3))
    assert found.origins == [] and found.absorbed == []


def test_a_fully_masked_row_is_a_conversion_at_softmax() -> None:
    keep = torch.tensor([[True, True], [False, False]])
    model = Through(lambda x: x.masked_fill(~keep, -INF).softmax(-1))
    assert first(analysis_of(model, torch.randn(2, 2))) == (
        "conversion", "_softmax", "forward", "fully_masked_softmax",
    )  # fmt: skip


def test_some_masked_rows_absorbed_others_converted_names_the_conversion() -> None:
    # log(0) is -Inf: fine in the first rows of softmax, NaN in the row that has nothing else
    mask = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    found = analysis_of(Through(lambda x: (x + mask.log()).softmax(-1)), torch.randn(2, 2))
    assert first(found)[:2] == ("conversion", "_softmax")
    assert [found.trace.graph[i].base for i, role in found.slice.contributors] == ["log"]


def test_minus_inf_absorbed_beside_plus_inf_that_makes_the_nan_names_the_birth() -> None:
    # the softmax makes 0 of -Inf as it should; the +Inf of the same product makes the NaN
    def model(x: torch.Tensor) -> torch.Tensor:
        return (x.half() * torch.tensor([[-300.0, 1.0], [300.0, 1.0]]).half()).float().softmax(-1)

    found = analysis_of(Through(model), torch.full((2, 2), 400.0))
    assert first(found) == ("birth", "mul", "forward", "low_precision_overflow")


def test_a_birth_beats_the_conversion_after_it() -> None:
    target = torch.tensor([[0.0, 1.0]])
    found = analysis_of(
        Through(lambda x: x.softmax(-1).log() * target), torch.tensor([[-200.0, 1.0]])
    )
    assert first(found) == ("birth", "log", "forward", "log_of_zero")
    assert [found.trace.graph[i].base for i in found.slice.chain][:2] == ["log", "mul"]


def test_an_intended_inf_is_born_where_a_sum_mixes_it() -> None:
    def loss(out: torch.Tensor, batch: object) -> torch.Tensor:
        masked = out.masked_fill(torch.tensor([False, True]), -INF)
        return functional.cross_entropy(masked, torch.tensor([0]), label_smoothing=0.1)

    found = analysis_of(Through(lambda x: x), torch.randn(1, 2), loss=loss)
    assert first(found)[1:] == ("sum", "loss", "inf_in_masked_class")


@pytest.mark.parametrize(("value", "bad"), [(NAN, True), (INF, True), (-INF, False)])
def test_a_batch_with_nan_or_inf_is_poisoned_one_with_only_minus_inf_is_a_constant(
    value: float, bad: bool
) -> None:
    x = torch.tensor([1.0, value])
    found = analysis_of(Through(lambda x: x * 2), x)
    assert (found.origins[0].origin.kind == "poisoned_batch") is bad
    assert (found.origins[0].origin.leaf == "batch") is bad


def test_a_poisoned_parameter_is_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with torch.no_grad():
        model[1].weight[0, 0] = NAN
    found = analysis_of(model, torch.randn(3, 2))
    assert found.origins[0].origin.leaf == "1.weight"
    assert first(found)[3] == "poisoned_parameter"


def test_under_a_finite_loss_a_dropped_branch_is_a_saved_value() -> None:
    model = Through(lambda x: torch.where(x > 0, x, torch.exp(-1000 * x)))
    found = analysis_of(model, torch.tensor([2.0, -1.0]).abs() * torch.tensor([1.0, 1.0]))
    assert found.origins == []
    found = analysis_of(model, torch.tensor([[1.0, 1.0]]), forward=lambda m, x: m(x)[:, :1])
    assert found.origins == []
    swapped = Through(lambda x: torch.where(x > 0, x, torch.exp(x * 1000)))
    found = analysis_of(swapped, torch.tensor([1.0]))
    event = found.origins[0].case.event
    assert first(found)[0] == "saved_value"
    assert event is not None and event.node == "ExpBackward0"
    assert found.trace.graph[event.forward_event].base == "exp"
    assert first(found)[3] == "unselected_branch_gradient"


def test_a_value_that_spread_before_it_was_dropped_was_born_in_forward() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        spread = x.masked_fill(torch.tensor([[True, True], [False, False]]), -INF).softmax(-1) @ x
        return spread[1:]

    found = analysis_of(Through(function), torch.randn(2, 2))
    assert first(found)[:3] == ("conversion", "_softmax", "forward")


def test_uninitialised_memory_counts_only_when_its_garbage_gets_out() -> None:
    def read(x: torch.Tensor) -> torch.Tensor:
        det = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)  # fills empty memory with NaN
        buffer = torch.empty(3)
        torch.use_deterministic_algorithms(det)
        return x.sum() * buffer

    def write(x: torch.Tensor) -> torch.Tensor:
        return torch.empty(3).fill_(2.0) * x.sum()

    assert first(analysis_of(Through(read), torch.ones(2)))[:2] == ("uninitialised", "empty")
    assert analysis_of(Through(write), torch.ones(2)).origins == []


def test_memory_written_from_outside_is_an_unseen_write() -> None:
    def read(x: torch.Tensor) -> torch.Tensor:
        buffer = torch.zeros(3)
        buffer.numpy()[1] = NAN
        return x.sum() * buffer

    assert first(analysis_of(Through(read), torch.ones(2)))[0] == "unseen_write"


def test_a_nan_learning_rate_is_a_scalar_origin() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.param_groups[0]["lr"] = NAN
    found = analysis_of(model, torch.randn(3, 2), optimizer=optimizer)
    assert first(found) == ("nonfinite_scalar", "add_", "update", "nonfinite_hyperparameter")


def test_a_guard_that_raises_leads_to_the_value_it_looked_at() -> None:
    def guarded(x: torch.Tensor) -> torch.Tensor:
        y = x.log()
        if not torch.isfinite(y).all():
            raise ValueError("not finite")
        return y

    found = analysis_of(Through(guarded), torch.tensor([1.0, 0.0]))
    assert first(found) == ("birth", "log", "forward", "log_of_zero")


def test_an_exception_without_any_bad_value_is_the_origin() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("a plain bug")

    assert first(analysis_of(Through(fails), torch.ones(2)))[0] == "exception"


def test_independent_origins_are_all_reported_in_order() -> None:
    def two(x: torch.Tensor) -> torch.Tensor:
        return (x - 1).log() + (x - 2).rsqrt()

    found = analysis_of(Through(two), torch.tensor([1.0, 2.0, 3.0]))
    bases = [j.case.event.base for j in found.origins if j.case.event]
    assert bases == ["log", "rsqrt"] or bases == ["log", "log", "rsqrt"][: len(bases)]


def test_a_tensor_learning_rate_and_foreach_lists_are_followed() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, foreach=True)
    with torch.no_grad():
        model[0].weight.zero_()
    found = analysis_of(model, torch.full((3, 2), 1e25), optimizer=optimizer, loss=_huge)
    event = found.origins[0].case.event
    assert event is not None and event.stage in ("update", "backward", "loss")


def _huge(out: torch.Tensor, batch: object) -> torch.Tensor:
    return (out * 1e-3).mean()


def _blanked(x: torch.Tensor) -> torch.Tensor:
    """Write an infinity into a tensor the way Python code does, then multiply it by zero."""
    blank = torch.ones_like(x)
    blank[0] = INF
    return x + blank * 0


def test_a_number_written_in_the_code_was_not_there_before_the_step() -> None:
    assert first(analysis_of(Through(_blanked), torch.randn(3, 3))) == (
        "conversion", "mul", "forward", "zero_times_inf",
    )  # fmt: skip


def test_a_nan_written_in_the_code_is_a_number_of_its_own() -> None:
    found = analysis_of(Through(lambda x: x + torch.tensor(NAN)), torch.randn(3, 3))
    assert first(found)[:3] == ("nonfinite_scalar", "add", "forward")


def test_a_sum_of_infinities_alone_is_no_masked_class() -> None:
    mask = torch.full((2, 2), -INF)
    found = analysis_of(Through(lambda x: x.abs() + mask), torch.randn(2, 2))
    assert first(found)[3] != "inf_in_masked_class"
