"""The heat map: exact counts by exponent, one column a layer or group, marks never thinned."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.charts.fabricated import layers_table
from workbench.charts import heat
from workbench.errors import UsageError


def with_exponents(count):
    table = layers_table(count)
    table.columns["exponents"] = [[i % 7 - 3, 1, 2, 3] for i in range(count)]
    return table


def test_every_layer_has_its_counts_at_its_exponents():
    first, counts = heat.exponent_counts(with_exponents(9), "activations")
    assert first == -3 and counts.shape == (9, 9)
    assert counts[:, 0].tolist() == [1, 2, 3, 0, 0, 0, 0, 0, 0]
    assert counts[:, 6].tolist() == [0, 0, 0, 0, 0, 0, 1, 2, 3]


def test_groups_sum_their_members():
    _, alone = heat.exponent_counts(with_exponents(40), "activations")
    _, grouped = heat.exponent_counts(with_exponents(40), "activations", max_layers=12)
    assert grouped.shape[1] <= 12
    assert grouped.sum() == alone.sum() == 40 * 6


def test_the_marks_are_those_of_the_ranges():
    figure = heat.figure(with_exponents(12))
    names = [trace.name for trace in figure.data]
    assert names == ["elements", "NaN", "−Inf"]
    assert list(figure.data[1].x) == [11] and list(figure.data[2].x) == [10]


def test_a_cell_without_elements_is_empty_and_a_limit_line_lies_at_its_power_of_two():
    figure = heat.figure(with_exponents(12))
    assert np.isnan(figure.data[0].z[3][0]) and np.isfinite(figure.data[0].z[0][0])
    ends = [shape.y0 for shape in figure.layout.shapes]
    assert max(ends) == pytest.approx(np.log2(65504))


def test_a_trace_without_exponents_is_refused_in_words():
    with pytest.raises(UsageError, match="no exponents"):
        heat.figure(layers_table(3))
