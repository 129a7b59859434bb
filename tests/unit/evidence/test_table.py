import numpy as np
import pytest

from workbench.errors import BundleError, UsageError
from workbench.evidence import Table, read_table, table_from_rows, write_table


def test_a_table_comes_back(tmp_path):
    table = Table(
        {
            "event": np.arange(4),
            "absmax": np.array([1.0, np.nan, np.inf, -np.inf], dtype=np.float32),
            "in_loss": np.array([True, False, False, True]),
            "op": ["aten.log.default", None, "", "aten.log.default"],
            "out_shape": [[2, 3], [], None, [2, 3]],
            "mixed": ["a", 1, float("nan"), {"k": [1]}],
        },
        {"device": "cpu", "limit": float("inf")},
    )
    write_table(tmp_path / "trace", "events", table)
    back = read_table(tmp_path / "trace", "events")
    assert list(back.columns) == list(table.columns)
    for name in ("event", "absmax", "in_loss"):
        assert back[name].dtype == table[name].dtype
        assert np.array_equal(back[name], table[name], equal_nan=name == "absmax")
    assert back["op"] == table["op"]
    assert back["out_shape"] == table["out_shape"]
    assert repr(back["mixed"]) == repr(table["mixed"])
    assert back.attrs == table.attrs
    assert len(back) == 4


def test_rows_have_plain_values():
    table = Table({"n": np.array([1, 2]), "op": ["a", "b"]})
    assert table.rows() == [{"n": 1, "op": "a"}, {"n": 2, "op": "b"}]
    assert table.row(1) == {"n": 2, "op": "b"}
    assert type(table.row(0)["n"]) is int


def test_rows_make_a_table():
    rows = [{"n": 1, "x": None, "s": "a", "f": True}, {"n": 2, "x": 0.5, "s": None, "f": False}]
    table = table_from_rows(rows, {"a": 1})
    assert table["n"].dtype == np.int64
    assert np.isnan(table["x"][0])
    assert table["s"] == ["a", None]
    assert table["f"].dtype == np.bool_
    assert table_from_rows([]).rows() == []


def test_an_empty_table_comes_back(tmp_path):
    write_table(tmp_path, "t", Table({"n": np.zeros(0), "s": []}))
    assert len(read_table(tmp_path, "t")) == 0


def test_writing_again_replaces(tmp_path):
    for value in (1, 2):
        write_table(tmp_path, "t", Table({"n": np.array([value])}))
    assert read_table(tmp_path, "t")["n"].tolist() == [2]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.json", "t.safetensors"]


def test_ragged_and_matrix_columns_are_refused(tmp_path):
    with pytest.raises(UsageError, match="'b' has 1 rows"):
        write_table(tmp_path, "t", Table({"a": [1, 2], "b": [1]}))
    with pytest.raises(UsageError, match="2 dimensions"):
        write_table(tmp_path, "t", Table({"a": np.zeros((2, 2))}))


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace('"rows": 2', '"rows": 3'),
        lambda text: text.replace("workbench.table/1", "workbench.table/9"),
        lambda text: text.replace('"values": ["a","b"]', '"values": ["a"]').replace('"b"', '"c"'),
        lambda text: "[]",
        lambda text: text.replace('"name": "s"', '"name": "absent"'),
        lambda text: text[: len(text) // 2],
    ],
)
def test_a_damaged_table_is_a_bundle_error(tmp_path, damage):
    write_table(tmp_path, "t", Table({"n": np.array([1, 2]), "s": ["a", "b"]}))
    path = tmp_path / "t.json"
    before = path.read_text()
    path.write_text(damage(before))
    try:
        table = read_table(tmp_path, "t")
    except BundleError:
        return
    assert table["n"].tolist() == [1, 2]
    assert before != path.read_text()


def test_an_absent_table_is_a_bundle_error(tmp_path):
    with pytest.raises(BundleError, match="cannot be read"):
        read_table(tmp_path, "t")
