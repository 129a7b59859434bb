"""A buffer trips where it became worse in the step, not where it is being filled."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from workbench.step.gates import buffer_masks, check_buffers

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("before", "after", "trips"),
    [
        ([1.0, 2.0], [1.0, NAN], True),
        ([NAN, 2.0], [NAN, 2.0], False),
        ([NAN, NAN], [1.0, NAN], False),
        ([INF, INF], [0.5, INF], False),
        ([NAN, 2.0], [2.0, NAN], False),
        ([INF, 2.0], [NAN, 2.0], True),
        ([-INF, NAN], [-INF, -INF], True),
        ([INF, INF], [1.0, NAN], True),
    ],
)
def test_a_buffer_trips_where_it_became_worse(
    before: list[float], after: list[float], trips: bool
) -> None:
    model = nn.Module()
    model.register_buffer("best", torch.tensor(before))
    masks = buffer_masks(model)
    model.get_buffer("best").copy_(torch.tensor(after))
    assert [bad.name for bad in check_buffers(model, masks)] == ["buffer:best"] * trips
