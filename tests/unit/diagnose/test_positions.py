"""Axes are named where the evidence names them, and only there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.unit.diagnose.cases import Through, analysis_of
from workbench.diagnose.positions import positions


def named(found: Any) -> dict[str, list[int]]:
    described = positions(found.origins[0].case)
    return {row["name"]: row["indices"] for row in described["axes"]}


def test_a_sample_is_a_row_of_what_comes_from_the_batch() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.0, 5.0], [6.0, 7.0]])
    found = analysis_of(Through(torch.log), x)
    assert named(found) == {"sample": [2]}
    assert positions(found.origins[0].case)["sentence"] == "sample 2 of 4"


def test_rows_of_a_flattened_sequence_lead_back_to_their_sample() -> None:
    x = torch.ones(3, 5, 2)
    x[1, 4, 0] = 0.0
    found = analysis_of(Through(lambda t: t.reshape(-1, 2).log()), x)
    assert named(found) == {"sample": [1]}


def test_a_parameter_of_the_same_size_is_no_sample() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([[1.0], [0.0], [2.0], [3.0]]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight.log().sum()

    found = analysis_of(Table(), torch.ones(4, 1))
    assert named(found) == {}
    assert positions(found.origins[0].case)["samples"] == []


def test_a_gradient_names_the_sample_of_its_forward_tensor() -> None:
    x = torch.ones(4, 3)
    x[2] = 0.0
    found = analysis_of(Through(lambda t: (t * t).sum(1).sqrt()), x)
    event = found.origins[0].case.event
    assert event is not None and event.node is not None
    assert named(found) == {"sample": [2]}


def test_a_parameters_gradient_of_the_batchs_length_names_no_sample() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([[1.0], [0.0], [2.0], [3.0]]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight.sqrt()

    found = analysis_of(Table(), torch.ones(4, 1))
    event = found.origins[0].case.event
    assert event is not None and event.node is not None
    assert named(found) == {}


def test_the_channel_of_a_convolution_is_named_by_its_definition() -> None:
    class Convolve(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(1, 3, 1, bias=False)
            with torch.no_grad():
                self.layer.weight.copy_(torch.tensor([1.0, 3e38, 1.0]).reshape(3, 1, 1, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    x = torch.ones(4, 1, 2, 2)
    x[3] = 100.0
    found = analysis_of(Convolve(), x)
    assert named(found) == {"sample": [3], "channel": [1]}
    assert positions(found.origins[0].case)["sentence"] == "sample 3 of 4; channel 1 of 3"


class Heads(nn.Module):
    """Attention whose second head overflows, by the fused op or written out."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 3e37]).reshape(1, 2, 1, 1))
        self.fused = fused

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = x.unsqueeze(1).expand(-1, 2, -1, -1) * 10
        if self.fused:
            return functional.scaled_dot_product_attention(q * self.scale / 10, q, q)
        return (q @ (q * self.scale / 10).transpose(-1, -2)).softmax(-1) @ q


def test_heads_are_named_where_the_op_defines_them_and_not_by_shape() -> None:
    x = torch.ones(3, 4, 8)
    assert named(analysis_of(Heads(True), x)).get("head") == [1]
    written_out = named(analysis_of(Heads(False), x))
    assert "head" not in written_out


@pytest.mark.parametrize("size", [5, 4])
def test_the_rows_of_an_embedding_gradient_are_vocabulary_entries(size: int) -> None:
    class Embed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(size, 2)
            nn.init.zeros_(self.table.weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.table(x)

    def loss(out: torch.Tensor, batch: Any) -> torch.Tensor:
        return (out * torch.tensor([1e30, 1.0]) * 2e8).sum()

    found = analysis_of(Embed(), torch.tensor([3, 3, 1, 0]), loss=loss)
    assert named(found) == {"vocabulary entry": [3]}
