import math

import numpy as np
import pytest

from tests.unit.charts.fabricated import FakeTable, layers_table, ledger
from workbench.charts.arrays import (
    layer_arrays,
    ledger_arrays,
    tensor_kinds,
    trace_tree,
)
from workbench.charts.finite import reduce_finite
from workbench.errors import UsageError


def test_reduction_counts_what_it_leaves_out():
    found = reduce_finite([1.0, math.nan, math.inf, -math.inf, 3.0], "max")
    assert (found.value, found.finite) == (3.0, 2)
    assert (found.nan, found.pos_inf, found.neg_inf) == (1, 1, 1)


def test_reduction_of_nothing_finite_has_no_value():
    assert reduce_finite([math.nan], "min").value is None


def test_layers_come_in_execution_order_whatever_the_row_order():
    table = layers_table(6)
    flipped = FakeTable({name: values[::-1] for name, values in table.columns.items()})
    assert list(layer_arrays(flipped)["module"].values) == table.columns["module"]


def test_placeholder_range_of_a_tensor_without_finite_elements_becomes_nan():
    table = layers_table(4)
    table.columns["absmax"][-1] = 0.0
    layers = layer_arrays(table)
    assert layers["finite"].values[-1] == 0
    assert math.isnan(layers["absmax"].values[-1])
    assert layers["nan"].values[-1] == 1


def test_counts_of_minus_one_mean_no_statistics_not_a_negative_number():
    table = layers_table(3, bad=False)
    table.columns["finite"][1] = -1
    table.columns["nan"][1] = -1
    layers = layer_arrays(table)
    assert layers["nan"].values[1] == 0
    assert math.isnan(layers["rms"].values[1])


def test_rms_is_the_root_of_the_mean_square():
    table = layers_table(3, bad=False)
    expected = [math.sqrt(value) for value in table.columns["mean_square"]]
    np.testing.assert_allclose(layer_arrays(table)["rms"].values, expected)


def test_unknown_kind_of_tensor_lists_the_known_ones():
    with pytest.raises(UsageError, match=r"'weights'.*activations, gradients"):
        layer_arrays(layers_table(3), "weights")


def test_kinds_are_those_the_table_has():
    assert tensor_kinds(layers_table(3, tensor="parameter_gradient")) == ("gradients",)


def test_ledger_keeps_the_sign_of_every_non_finite_value():
    records = [
        {"step": i, "loss": value}
        for i, value in enumerate([1.0, math.nan, math.inf, -math.inf, None])
    ]
    data = ledger_arrays(records)
    assert list(data["loss_kind"].values) == ["finite", "nan", "pos_inf", "neg_inf", "missing"]
    assert np.isfinite(data["loss"].values).tolist() == [True, False, False, False, False]


def test_ledger_reads_tagged_values_and_nested_learning_rates():
    data = ledger_arrays(
        [{"step": 1, "loss": {"finite": False, "value": "-inf"}, "learning_rates": [[1e-3], [2.0]]}]
    )
    assert data["loss_kind"].values[0] == "neg_inf"
    assert data["learning_rate"].values[0] == 1e-3


def test_ledger_keeps_the_records_of_one_rank():
    records = [{"step": 1, "rank": 0, "loss": 1.0}, {"step": 1, "rank": 1, "loss": 2.0}]
    assert ledger_arrays(records, rank=1)["loss"].values.tolist() == [2.0]


def test_tree_holds_every_kind_and_the_ledger():
    tree = trace_tree(layers_table(3), ledger(5))
    assert tree["/ranges/activations"].sizes["layer"] == 3
    assert tree["/ledger"].sizes["record"] == 5


def test_one_of_several_outputs_of_the_model_says_whose_it_is():
    from workbench.charts.arrays import _label

    assert _label("", "out.0", "VAE") == "vae out.0"
    assert _label("", "weight", "VAE") == "weight"
    assert _label("enc", "out.1", "Encoder") == "enc out.1"
