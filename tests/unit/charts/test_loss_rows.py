import numpy as np
import pytest

from tests.unit.charts.fabricated import FakeTable, layers_table
from workbench.charts import ranges
from workbench.charts.loss_rows import MAX_OPS, with_loss


def events(ops, *, nodes=None, micro_steps=None, nan=()):
    count = len(ops)
    columns = {
        "op": [f"aten.{op}.default" for op in ops],
        "stage": ["loss"] * count,
        "in_loss": np.ones(count, dtype=bool),
        "node": list(nodes or [""] * count),
        "micro_step": np.asarray(micro_steps or [0] * count),
        "out_dtype": ["float32"] * count,
        "out_shape": ["[]"] * count,
        "source": ["train.py:31"] * count,
        "event": np.arange(count),
    }
    for name in ("nan", "pos_inf", "neg_inf", "zeros", "subnormals"):
        columns[name] = np.zeros(count, dtype=np.int64)
    columns["finite"] = np.ones(count, dtype=np.int64)
    for name in ("min", "max", "absmax", "mean_square"):
        columns[name] = np.ones(count)
    for index in nan:
        columns["nan"][index], columns["finite"][index] = 1, 0
    return FakeTable(columns)


def test_ops_of_the_loss_follow_the_layers_and_carry_their_marks():
    table = with_loss(layers_table(3, bad=False), events(["log", "mean"], nan=[1]))
    figure = ranges.figure(table)
    assert list(figure.layout.xaxis.ticktext)[-2:] == ["loss log", "loss mean"]
    (mark,) = [trace for trace in figure.data if trace.name == "NaN"]
    assert list(mark.x) == [4]


def test_backward_ops_and_earlier_micro_steps_are_left_out():
    found = with_loss(
        layers_table(2, bad=False),
        events(["log", "log", "mul"], nodes=["", "", "LogBackward0"], micro_steps=[0, 1, 1]),
    )
    assert found.columns["name"][2:] == ["log"]


def test_long_loss_keeps_every_non_finite_op_and_its_last():
    found = with_loss(layers_table(2), events(["mul"] * (MAX_OPS + 5), nan=[3, 9]))
    assert list(found.columns["event"][2:]) == [3, 9, MAX_OPS + 4]


@pytest.mark.parametrize("table", [None, FakeTable({"stage": ["loss"]}), events([])])
def test_without_loss_ops_the_layers_stay_as_they_are(table):
    layers = layers_table(2)
    assert with_loss(layers, table) is layers
