"""Batches and states as JSON plus named tensors, and back.

The JSON says the shape of the tree; tensors and arrays are stored apart, by name. Nothing a bundle
names is imported: a dataclass or mapping whose class is not handed in comes back as an
``AttributeDict``, which answers both ``x["field"]`` and ``x.field``.
"""

from __future__ import annotations

import base64
import dataclasses
import re
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from workbench.errors import BundleError, UsageError
from workbench.evidence.packing import cannot_store
from workbench.evidence.records import AttributeDict, FieldTuple, Missing
from workbench.numerics.limits import dtype_name, dtype_of

MAX_DEPTH: Final = 60  # each level of a tree is up to three levels of JSON

_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.\-]+")
_ARRAY_KINDS: Final = "biufc"
_TIMES: Final = "mM"

# What reading a spec that is none can raise; anything else is a fault of this package.
_MALFORMED: Final = (
    UsageError,
    KeyError,
    TypeError,
    ValueError,
    IndexError,
    RuntimeError,
    AttributeError,
    OverflowError,
)

Resolve = Callable[[str], "type | None"]


def flatten(tree: Any) -> tuple[Any, dict[str, Tensor]]:
    """Take a tree apart.

    Args:
        tree: Dicts with any plain keys, lists, tuples, namedtuples, dataclasses, sets, scalars,
            strings, bytes, numpy arrays, tensors, dtypes, devices, sizes. Anything else is
            recorded as ``{"missing": "<type>"}``.

    Returns:
        The spec (plain values, for JSON) and the tensors by name. A tensor that occurs twice is
        stored once and restored as one object.
    """
    walk = _Flatten()
    return walk.node(tree, "", 0), walk.tensors


def missing_objects(spec: Any) -> list[str]:
    """Type names of everything that could not be recorded, in order, each once."""
    found: list[str] = []
    stack = [spec]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            if "missing" in node and "type" not in node:
                found.append(str(node["missing"]))
            stack += list(node.values())
        elif isinstance(node, list):
            stack += node
    return sorted(set(found))


def unflatten(spec: Any, tensors: Mapping[str, Tensor], resolve: Resolve | None = None) -> Any:
    """Put a tree together again.

    Args:
        spec: As from ``flatten``; untrusted.
        tensors: The tensors by name.
        resolve: Gives the class of a name such as ``"package.module:Name"``, or None. Without it
            no class is looked up. Use ``loaded_class`` once the user's code is loaded and trusted.

    Raises:
        BundleError: A spec that is not one, or a tensor that is not there.
    """
    try:
        return _Unflatten(tensors, resolve).node(spec, 0)
    except BundleError:
        raise
    except _MALFORMED as error:
        raise BundleError(
            f"A tree in this bundle cannot be put together: {type(error).__name__}: "
            f"{str(error)[:160]}. Nothing of it is used; get a fresh copy of the bundle."
        ) from error


def _class_name(obj: Any) -> str:
    kind = type(obj)
    return f"{kind.__module__}:{kind.__qualname__}"


class _Flatten:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._seen: dict[int, str] = {}
        self._kept: list[Any] = []
        self._open: set[int] = set()

    def node(self, obj: Any, path: str, depth: int) -> Any:
        if obj is None or isinstance(obj, bool):
            return obj
        if isinstance(obj, np.generic):
            return self._array(np.asarray(obj), path) | {"scalar": True}
        if isinstance(obj, int | float | str) and type(obj) in {int, float, str}:
            return obj if not (isinstance(obj, int) and abs(obj) >= 2**63) else _big(obj)
        leaf = self._leaf(obj, path)
        if leaf is not None:
            return leaf
        if depth >= MAX_DEPTH or id(obj) in self._open:
            return {"missing": f"{_class_name(obj)} (nests too deep, or contains itself)"}
        self._open.add(id(obj))
        try:
            return self._branch(obj, path, depth + 1)
        finally:
            self._open.discard(id(obj))

    def _leaf(self, obj: Any, path: str) -> Any:
        if isinstance(obj, Missing):
            return {"missing": obj.type}
        if isinstance(obj, Tensor):
            if reason := cannot_store(obj):
                return {"missing": reason}
            return {"type": "tensor", "name": self._store(obj, obj, path)}
        if isinstance(obj, np.ndarray):
            return self._array(obj, path)
        if isinstance(obj, bytes | bytearray):
            text = base64.b64encode(obj).decode("ascii")
            return {"type": "bytes", "base64": text, "mutable": isinstance(obj, bytearray)}
        if isinstance(obj, torch.dtype):
            return {"type": "dtype", "value": dtype_name(obj)}
        if isinstance(obj, torch.device):
            return {"type": "device", "value": str(obj)}
        if isinstance(obj, torch.Size):
            return {"type": "size", "value": [int(n) for n in obj]}
        if type(obj) is complex:
            return {"type": "complex", "real": obj.real, "imag": obj.imag}
        if type(obj) is range:
            return {"type": "range", "value": [obj.start, obj.stop, obj.step]}
        return None

    def _branch(self, obj: Any, path: str, depth: int) -> Any:
        if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
            names = [f.name for f in dataclasses.fields(obj) if hasattr(obj, f.name)]
            return self._fields(
                "dataclass", obj, [(n, getattr(obj, n)) for n in names], path, depth
            )
        if isinstance(obj, types.SimpleNamespace):
            return self._fields("namespace", obj, list(vars(obj).items()), path, depth)
        if isinstance(obj, Mapping):
            return self._mapping(obj, path, depth)
        if isinstance(obj, tuple) and hasattr(obj, "_fields"):
            pairs = list(zip(obj._fields, obj, strict=True))
            return self._fields("namedtuple", obj, pairs, path, depth)
        if isinstance(obj, slice):
            kind, items = "slice", [obj.start, obj.stop, obj.step]
        elif isinstance(obj, set | frozenset):
            kind, items = type(obj).__name__, sorted(obj, key=repr)
        elif isinstance(obj, list | tuple | deque):
            kind = "tuple" if isinstance(obj, tuple) else "list"
            items = list(obj)
        else:
            return {"missing": _class_name(obj)}
        nodes = [self.node(item, f"{path}.{i}", depth) for i, item in enumerate(items)]
        return nodes if kind == "list" else {"type": kind, "items": nodes}

    def _mapping(self, obj: Mapping[Any, Any], path: str, depth: int) -> Any:
        items = []
        for i, (key, value) in enumerate(obj.items()):
            name = key if isinstance(key, str | int) else f"key{i}"
            items.append(
                [self.node(key, f"{path}.key{i}", depth), self.node(value, f"{path}.{name}", depth)]
            )
        node: dict[str, Any] = {"type": "dict", "items": items}
        if type(obj) not in {dict, OrderedDict, defaultdict}:
            node |= {"type": "mapping", "class": _class_name(obj)}
        return node

    def _fields(
        self, kind: str, obj: Any, pairs: list[tuple[str, Any]], path: str, depth: int
    ) -> Any:
        items = [[name, self.node(value, f"{path}.{name}", depth)] for name, value in pairs]
        return {"type": kind, "class": _class_name(obj), "items": items}

    def _array(self, array: np.ndarray[Any, Any], path: str) -> Any:
        if array.dtype.kind in "OSU":
            values = [self.node(v, f"{path}.{i}", 1) for i, v in enumerate(array.ravel().tolist())]
            return {
                "type": "objects",
                "shape": list(array.shape),
                "dtype": array.dtype.str,
                "items": values,
            }
        supported = array.dtype.kind in _ARRAY_KINDS and array.dtype.itemsize <= 8
        supported = supported or array.dtype == np.complex128
        if not supported and array.dtype.kind not in _TIMES:
            return {"missing": f"numpy array of {array.dtype.str}"}
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        if native.dtype.kind in _TIMES:
            native = native.view(np.int64)
        contiguous = np.ascontiguousarray(native).reshape(native.shape)
        if not contiguous.flags.writeable:
            contiguous = contiguous.copy()
        name = self._store(torch.from_numpy(contiguous), array, path)
        return {"type": "ndarray", "name": name, "dtype": array.dtype.str}

    def _store(self, t: Tensor, identity: Any, path: str) -> str:
        if id(identity) in self._seen:
            return self._seen[id(identity)]
        base = _NOT_IN_NAMES.sub("_", path.lstrip("."))[:120] or "value"
        name, number = base, 2
        while name in self.tensors:
            name, number = f"{base}~{number}", number + 1
        self.tensors[name] = t
        self._seen[id(identity)] = name
        self._keep.append(identity) if hasattr(self, "_keep") else setattr(
            self, "_keep", [identity]
        )
        return name


def _big(value: int) -> Any:
    return {"type": "int", "hex": hex(value)}


class _Unflatten:
    def __init__(self, tensors: Mapping[str, Tensor], resolve: Resolve | None) -> None:
        self.tensors = tensors
        self.resolve = resolve
        self._arrays: dict[str, np.ndarray[Any, Any]] = {}

    def node(self, spec: Any, depth: int) -> Any:
        if depth > MAX_DEPTH + 2:
            raise ValueError("it nests too deep")
        if spec is None or isinstance(spec, bool | int | float | str):
            return spec
        if isinstance(spec, list):
            return [self.node(item, depth + 1) for item in spec]
        if "missing" in spec and "type" not in spec:
            return Missing(str(spec["missing"]))
        kind = spec["type"]
        if kind == "tensor":
            return self.tensors[spec["name"]]
        if kind == "ndarray":
            return self._ndarray(spec)
        if kind in _SCALARS:
            return _SCALARS[kind](spec)
        if kind in {"dict", "mapping"}:
            pairs = [(self.node(k, depth + 1), self.node(v, depth + 1)) for k, v in spec["items"]]
            plain = kind == "dict" or not all(isinstance(key, str) for key, _ in pairs)
            return dict(pairs) if plain else AttributeDict(pairs)
        if kind in {"dataclass", "namedtuple", "namespace"}:
            fields = {str(k): self.node(v, depth + 1) for k, v in spec["items"]}
            return self._record(kind, str(spec.get("class", "")), fields)
        items = [self.node(item, depth + 1) for item in spec["items"]]
        if kind == "objects":
            return _objects(spec, items)
        return _COLLECTIONS[kind](items)

    def _ndarray(self, spec: Any) -> Any:
        name, dtype = spec["name"], np.dtype(_plain_dtype(spec["dtype"]))
        key = f"{name}|{dtype.str}"
        if key not in self._arrays:
            array = self.tensors[name].numpy()
            if dtype.kind in _TIMES:
                array = array.view(dtype.newbyteorder("="))
            self._arrays[key] = array.astype(dtype, copy=False)
        array = self._arrays[key]
        return array[()] if spec.get("scalar") is True else array

    def _record(self, kind: str, name: str, fields: dict[str, Any]) -> Any:
        found = self.resolve(name) if self.resolve is not None and kind != "namespace" else None
        if kind == "namespace":
            return types.SimpleNamespace(**fields)
        if kind == "namedtuple":
            if found is not None and getattr(found, "_fields", None) == tuple(fields):
                return tuple.__new__(found, fields.values())
            return FieldTuple(tuple(fields), list(fields.values()))
        if found is not None and dataclasses.is_dataclass(found):
            # Without __init__: restoring a record is not making a new one.
            made = object.__new__(found)
            for key, value in fields.items():
                object.__setattr__(made, key, value)
            return made
        return AttributeDict(fields)


def _plain_dtype(text: Any) -> str:
    if not isinstance(text, str) or not re.fullmatch(
        r"[<>|=]?[biufcmM][0-9]{1,2}(\[[0-9a-zA-Zμ]{1,8}\])?", text
    ):
        raise ValueError(f"numpy dtype {str(text)[:40]!r}")
    return text


def _objects(spec: Any, items: list[Any]) -> Any:
    shape = [int(n) for n in spec["shape"]]
    array = np.empty(len(items), dtype=object)
    array[:] = items
    text = str(spec["dtype"])
    if re.fullmatch(r"[<>|=]?[SU][0-9]{1,6}", text):
        width = max((len(item) for item in items), default=0)
        declared = int(re.sub(r"\D", "", text))
        array = array.astype(f"{text.lstrip('<>|=')[0]}{max(1, min(declared, width))}")
    return array.reshape(shape)


_SCALARS: Final[dict[str, Callable[[Any], Any]]] = {
    "bytes": lambda spec: (bytearray if spec.get("mutable") is True else bytes)(
        base64.b64decode(spec["base64"], validate=True)
    ),
    "dtype": lambda spec: dtype_of(str(spec["value"])),
    "device": lambda spec: torch.device(str(spec["value"])),
    "size": lambda spec: torch.Size([int(n) for n in spec["value"]]),
    "complex": lambda spec: complex(float(spec["real"]), float(spec["imag"])),
    "range": lambda spec: range(*[int(n) for n in spec["value"]]),
    "int": lambda spec: int(str(spec["hex"]), 16),
}
_COLLECTIONS: Final[dict[str, Callable[[list[Any]], Any]]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "slice": lambda items: slice(*items),
}
