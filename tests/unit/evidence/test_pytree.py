import collections
import contextlib
import dataclasses
import json
import math
import types
from collections import OrderedDict, UserDict, defaultdict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from workbench.errors import BundleError
from workbench.evidence import (
    AttributeDict,
    FieldTuple,
    Missing,
    flatten,
    loaded_class,
    missing_objects,
    unflatten,
)
from workbench.numerics import bits_equal, jsonio


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Sample:
    tokens: Any
    weight: float = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: int


class Opaque:
    pass


def through(tree, resolve=None):
    spec, tensors = flatten(tree)
    return unflatten(jsonio.loads(jsonio.dumps(spec)), tensors, resolve)


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and bits_equal(a, b)
    if isinstance(a, np.ndarray | np.generic):
        return (
            type(a) is type(b)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and np.array_equal(a, b, equal_nan=a.dtype.kind in "fcmM")
        )
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or a == b
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        pairs = zip(a.items(), b.items(), strict=True)
        return len(a) == len(b) and all(same(k, m) and same(v, w) for (k, v), (m, w) in pairs)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats()
    | st.text()
    | st.binary(max_size=20)
    | st.complex_numbers(allow_nan=False)
    | st.sampled_from([torch.float16, torch.device("cuda:1"), torch.Size([2, 3]), range(1, 9, 2)])
)
ARRAYS = hnp.arrays(
    st.one_of(
        hnp.boolean_dtypes(),
        hnp.integer_dtypes(endianness="?"),
        hnp.floating_dtypes(sizes=(16, 32, 64), endianness="?"),
        hnp.complex_number_dtypes(endianness="="),
        hnp.datetime64_dtypes(endianness="=", max_period="D", min_period="ns"),
    ),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
KEYS = (
    st.text(max_size=5) | st.integers(-9, 9) | st.booleans() | st.none() | st.tuples(st.integers())
)
TREES = st.recursive(
    SCALARS | ARRAYS | hnp.arrays(np.float32, 3).map(torch.from_numpy),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=12,
)


@given(TREES)
def test_a_tree_comes_back(tree):
    back = through(tree)
    assert same(tree, back), (tree, back)


@given(TREES)
def test_its_spec_is_strict_json(tree):
    spec, _ = flatten(tree)
    json.loads(jsonio.dumps(spec), parse_constant=pytest.fail)


def test_dicts_keep_their_order_and_their_keys():
    tree = {3: "a", "3": "b", None: "c", (1, "x"): "d", 2.5: "e", True: "f", b"k": "g"}
    assert list(through(tree).items()) == list(tree.items())


def test_a_dict_that_looks_like_a_tag_or_a_node_stays_a_dict():
    for tree in (
        {"finite": False, "value": "nan"},
        {"type": "tensor", "name": "x"},
        {"missing": "y"},
    ):
        assert through(tree) == tree


def test_kinds_of_dicts():
    tree = [OrderedDict(a=1), defaultdict(list, b=[2]), UserDict(c=torch.ones(2))]
    back = through(tree)
    assert [type(x) for x in back] == [dict, dict, AttributeDict]
    assert torch.equal(back[2].c, torch.ones(2))
    assert torch.equal(back[2]["c"], torch.ones(2))


def test_records_come_back_without_their_classes():
    back = through({"p": Point(1, torch.zeros(2)), "s": Sample([1, 2]), "f": Frozen(3)})
    assert isinstance(back["p"], FieldTuple)
    assert (back["p"].x, back["p"][0], back["p"]._fields) == (1, 1, ("x", "y"))
    first, second = back["p"]
    assert (first, second.tolist()) == (1, [0.0, 0.0])
    assert (back["s"].tokens, back["s"]["weight"], back["f"].a) == ([1, 2], 1.0, 3)
    with pytest.raises(AttributeError):
        _ = back["p"].z
    with pytest.raises(AttributeError):
        _ = back["s"].nothing


def test_records_come_back_as_their_classes_when_these_are_handed_in():
    classes = {f"{c.__module__}:{c.__qualname__}": c for c in (Point, Sample, Frozen)}
    tree = [Point(1, 2), Sample([1], 0.5), Frozen(3)]
    assert through(tree, classes.get) == tree
    assert isinstance(through(tree, classes.get)[0], Point)


def test_loaded_class_imports_nothing_and_gives_only_records():
    assert loaded_class("this:test") is None
    assert loaded_class("subprocess:Popen") is None
    assert loaded_class("antigravity:x") is None
    assert loaded_class("dataclasses:Field.__class__") is None
    import sys

    assert "antigravity" not in sys.modules
    sys.modules["a_user_module"] = types.SimpleNamespace(Sample=Sample, Point=Point, os=Opaque)
    try:
        assert loaded_class("a_user_module:Sample") is Sample
        assert loaded_class("a_user_module:Point") is Point
        assert loaded_class("a_user_module:os") is None
    finally:
        del sys.modules["a_user_module"]


def test_what_cannot_be_recorded_is_named():
    spec, _ = flatten({"a": Opaque(), "b": [lambda: 0], "c": 1, "d": np.zeros(2, dtype="f4,i4")})
    assert [name.split(":")[-1] for name in missing_objects(spec)] == [
        "function",
        "numpy array of |V8",
        "Opaque",
    ] or len(missing_objects(spec)) == 3
    back = unflatten(jsonio.loads(jsonio.dumps(spec)), {})
    assert isinstance(back["a"], Missing)
    assert "Opaque" in back["a"].type
    assert back["c"] == 1


def test_a_tree_that_contains_itself_ends():
    loop = [1]
    loop.append(loop)
    spec, _ = flatten(loop)
    assert len(missing_objects(spec)) == 1
    deep = []
    for _ in range(500):
        deep = [deep]
    spec, _ = flatten(deep)
    assert missing_objects(spec)
    jsonio.loads(jsonio.dumps(spec))


def test_one_object_twice_stays_one():
    t, a = torch.randn(3), np.arange(3)
    back = through({"x": t, "y": [t], "a": a, "b": a})
    assert back["x"] is back["y"][0]
    assert back["a"] is back["b"]
    assert len(flatten({"x": t, "y": t})[1]) == 1


def test_names_are_paths_and_never_collide():
    tree = {
        "a": {"b": torch.zeros(1)},
        "a.b": torch.ones(1),
        "ü/../": torch.ones(2),
        "": torch.ones(3),
    }
    _, tensors = flatten([tree])
    assert len(tensors) == 4
    assert "0.a.b" in tensors
    assert all("/" not in name for name in tensors)
    assert same([tree], through([tree]))


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a", "longer", ""]),
        np.array([b"x", b"yz"]),
        np.array([None, 1, "x", [2]], dtype=object),
        np.array([["a", "b"]]),
        np.array("2026-11-12", dtype="datetime64[D]"),
        np.arange(6).reshape(2, 3)[:, ::-1],
        np.broadcast_to(np.arange(3.0), (2, 3)),
        np.zeros((0, 4), dtype=np.uint16),
        np.array([1.5, np.nan], dtype=">f8"),
    ],
)
def test_arrays_of_other_kinds(array):
    back = through(array)
    assert back.shape == array.shape
    assert back.dtype.kind == array.dtype.kind
    assert back.tolist() == array.tolist() or np.array_equal(back, array, equal_nan=True)


def test_namespaces_slices_and_sets():
    tree = [types.SimpleNamespace(a=1), slice(1, None, 2), {3, 1}, frozenset("ab"), bytearray(b"x")]
    assert through(tree) == tree
    assert through(collections.deque([1, 2])) == [1, 2]


@pytest.mark.parametrize(
    "spec",
    [
        {"type": "tensor", "name": "absent"},
        {"type": "tensor"},
        {"type": "no such type", "items": []},
        {"no": "type"},
        {"type": "dict", "items": [[[1], 2]]},
        {"type": "dict", "items": [1]},
        {"type": "dict"},
        {"type": "ndarray", "name": "t", "dtype": "O"},
        {"type": "ndarray", "name": "t", "dtype": "<f4, (1000000000,)f8"},
        {"type": "ndarray", "name": "t", "dtype": "V99999999"},
        {"type": "bytes", "base64": "%%%"},
        {"type": "device", "value": "nowhere:0"},
        {"type": "dtype", "value": "nn"},
        {"type": "objects", "shape": [99999999], "dtype": "|O", "items": [1]},
        {"type": "int", "hex": "zz"},
        {"type": "size", "value": ["x"]},
        {"type": "range", "value": [1, 2, 0]},
        {"type": "namedtuple", "class": "x:y", "items": [[1]]},
    ],
)
def test_a_spec_that_is_none_is_a_bundle_error(spec):
    with pytest.raises(BundleError):
        unflatten([spec], {"t": torch.zeros(3)})


NODES = st.recursive(
    st.none() | st.integers(-5, 5) | st.text(max_size=3) | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.fixed_dictionaries(
            {
                "type": st.sampled_from(
                    "dict tuple set slice ndarray tensor objects range size mapping dataclass "
                    "namedtuple namespace bytes complex int".split()
                )
            },
            optional={
                "items": inner,
                "name": st.just("t"),
                "dtype": st.sampled_from(["<f4", "|O", "<U3"]),
                "value": inner,
                "shape": inner,
                "class": st.just("os:system"),
                "missing": inner,
            },
        )
    ),
    max_leaves=10,
)


@given(NODES)
def test_any_spec_is_a_tree_or_a_bundle_error(spec):
    with contextlib.suppress(BundleError):
        unflatten(spec, {"t": torch.zeros(3)}, loaded_class)
