import numpy as np
import pytest

from tests.unit.charts.fabricated import layers_table
from workbench.charts.arrays import layer_arrays
from workbench.charts.grouping import group_layers


def test_few_layers_stay_as_they_are():
    layers = layer_arrays(layers_table(12))
    assert group_layers(layers, limit=12) is layers


@pytest.mark.parametrize("count", [401, 1_700, 10_000])
def test_groups_fit_and_no_element_is_lost(count):
    layers = layer_arrays(layers_table(count))
    grouped = group_layers(layers)
    assert 40 <= grouped.sizes["layer"] <= 400
    for name in ("nan", "pos_inf", "neg_inf", "finite"):
        assert grouped[name].values.sum() == layers[name].values.sum()
    assert grouped["members"].values.sum() == count


def test_group_takes_its_worst_members_mark():
    layers = layer_arrays(layers_table(800))
    layers["pos_inf"].values[5] = 7
    grouped = group_layers(layers)
    row = int(np.flatnonzero(grouped["pos_inf"].values)[0])
    assert grouped["pos_inf"].values[row] == 7
    assert grouped["worst"].values[row] == layers["label"].values[5]
    assert grouped["source"].values[row] == layers["source"].values[5]


def test_group_range_covers_all_members():
    layers = layer_arrays(layers_table(800, bad=False))
    grouped = group_layers(layers)
    assert grouped["absmax"].values.max() == layers["absmax"].values.max()
    weighted = (layers["mean_square"] * layers["finite"]).values.sum()
    again = (grouped["mean_square"] * grouped["finite"]).values.sum()
    np.testing.assert_allclose(again, weighted)


def test_modules_without_structure_are_joined_in_execution_order():
    table = layers_table(1_000)
    table.columns["module"] = [f"layer{i}" for i in range(1_000)]
    grouped = group_layers(layer_arrays(table))
    assert grouped.sizes["layer"] <= 400
    assert grouped["label"].values[0].startswith("layer0 to layer2")
