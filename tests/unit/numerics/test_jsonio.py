import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.errors import BundleError, StrictJsonError, UsageError
from workbench.numerics import jsonio

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=25,
)


def same(a, b):
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or (
            a == b and math.copysign(1, a) == math.copysign(1, b)
        )
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@given(PLAIN)
def test_what_is_written_comes_back(value):
    assert same(jsonio.loads(jsonio.dumps(value)), value)


@given(PLAIN)
def test_what_is_written_is_json_for_everyone(value):
    def refuse(token):
        raise AssertionError(token)

    json.loads(jsonio.dumps(value, indent=2), parse_constant=refuse)


@given(st.text(alphabet='{}[]",:0123456789.eE+-nulltruefasNIity \\', max_size=60))
def test_any_text_is_read_or_refused(text):
    try:
        value = jsonio.loads(text)
    except StrictJsonError:
        return
    assert same(jsonio.loads(jsonio.dumps(value)), value)


@pytest.mark.parametrize(
    ("value", "name"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")]
)
def test_nonfinite_numbers_are_tagged(value, name):
    assert json.loads(jsonio.dumps({"x": [value]})) == {"x": [{"finite": False, "value": name}]}


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        "[Infinity]",
        '{"a": -Infinity}',
        "1e999",
        "-1e999",
        '{"a": 1, "a": 2}',
        '{"x": {"a": 1, "a": 1}}',
        "",
        "{",
        "[1,]",
        "{'a': 1}",
        "[1] [2]",
        "nul",
        "\ufeff[1]",
        '"\n"',
        "9" * 5000,
    ],
)
def test_what_is_not_strict_is_refused(text):
    with pytest.raises(StrictJsonError):
        jsonio.loads(text)


def test_the_duplicate_key_is_named():
    with pytest.raises(StrictJsonError, match="'loss' twice"):
        jsonio.loads('{"loss": 1, "step": 2, "loss": 3}')


def test_bytes_must_be_utf8():
    with pytest.raises(StrictJsonError, match="UTF-8"):
        jsonio.loads(b'"\xff"')


@pytest.mark.parametrize("bracket", ["[", '{"a":'])
@pytest.mark.parametrize("depth", [201, 100_000])
def test_deep_nesting_is_refused(bracket, depth):
    with pytest.raises(StrictJsonError):
        jsonio.loads(bracket * depth)


def test_200_levels_are_read_and_brackets_in_texts_do_not_count():
    assert jsonio.loads("[" * 200 + "]" * 200) is not None
    assert jsonio.loads(jsonio.dumps(["[" * 500, '"[{' * 300])) == ["[" * 500, '"[{' * 300]


def test_numpy_and_torch_values_are_written_as_numbers():
    values = {
        "a": np.float32(0.5),
        "b": np.int64(3),
        "c": np.bool_(True),
        "d": torch.tensor(math.nan),
        "e": torch.tensor([1, 2]),
        "f": np.array([[1.0, np.inf]]),
        "g": (1, {2}),
        "h": np.float64(-np.inf),
    }
    back = jsonio.loads(jsonio.dumps(values))
    assert math.isnan(back.pop("d"))
    assert back == {
        "a": 0.5,
        "b": 3,
        "c": True,
        "e": [1, 2],
        "f": [[1.0, math.inf]],
        "g": [1, [2]],
        "h": -math.inf,
    }


@pytest.mark.parametrize("value", [object(), {(1, 2): 3}, 1j, b"x", {None: math.nan, "a": 1}])
def test_what_json_cannot_hold_is_a_usage_error(value):
    with pytest.raises(UsageError, match="as JSON"):
        jsonio.dumps(value)


def test_an_object_that_contains_itself_is_refused():
    loop = []
    loop.append(loop)
    with pytest.raises(UsageError):
        jsonio.dumps(loop)


def test_equal_objects_have_equal_text():
    assert jsonio.dumps({"b": 1, "a": 2}) == jsonio.dumps({"a": 2, "b": 1}) == '{"a":2,"b":1}'


def test_lines_say_which_one_is_wrong():
    records = [{"step": 1, "loss": math.inf}, {"step": 2, "loss": 0.5}]
    assert jsonio.load_lines(jsonio.dump_lines(records)) == records
    with pytest.raises(StrictJsonError, match="Line 2"):
        jsonio.load_lines('{"a": 1}\n{"a": NaN}\n')


def test_strict_errors_are_bundle_errors():
    assert issubclass(StrictJsonError, BundleError)
    assert StrictJsonError.exit_code == 3


def test_lines_of_one_shape_are_what_dump_line_gives():
    shape = jsonio.LineShape(["step", "loss", "who", "ids", "parts"])
    record = {"step": 3, "loss": 1.5e-7, "who": {"né": [1, None]}, "ids": [1, 2], "parts": None}
    given = record | {"who": jsonio.part(record["who"])}
    assert jsonio.loads(shape.line(given)) == record and shape.line(given).isascii()
    plain = record | {"who": None}
    assert shape.line(plain) == jsonio.dump_line(plain)
    tagged = jsonio.part({"a": float("nan")})
    assert jsonio.loads(shape.line(given | {"ids": tagged}))["ids"].keys() == {"a"}
