"""Non-finite sets that travel: packed, compared element by element with those of the original."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
from torch import Tensor

from workbench.numerics.counts import masks

Relation = Literal["equal", "subset", "superset", "disjoint", "overlap", "finite", "unknown"]
"""How a set of non-finite elements lies to the original's."""
Packed = dict[str, dict[str, Any]]
"""By sink: ``shape``, and by class (``nan``, ``pos_inf``, ``neg_inf``) its packed positions."""

MAX_BYTES: Final = 4 << 20
MAX_UNPACKED: Final = 1 << 30
_CLASSES: Final = ("nan", "pos_inf", "neg_inf")
_RAISED: Final = "raised"


def pack_masks(sinks: Iterable[tuple[str, Tensor | None]]) -> Packed | None:
    """Pack the non-finite sets of sinks.

    Args:
        sinks: Names and tensors; None for one that has no elements (an exception).

    Returns:
        Plain data, or None when it would be larger than `MAX_BYTES`.
    """
    packed: Packed = {}
    size = 0
    for name, tensor in sinks:
        if tensor is None:
            packed[name] = {"shape": [], _RAISED: _pack(np.ones(1, dtype=bool))}
            continue
        entry: dict[str, Any] = {"shape": list(tensor.shape)}
        for kind, mask in zip(_CLASSES, masks(tensor.detach()), strict=True):
            if bool(mask.any()):
                entry[kind] = _pack(mask.cpu().numpy())
                size += len(entry[kind])
        packed[name] = entry
        if size > MAX_BYTES:
            return None
    return packed


def relation(original: Packed | None, other: Packed | None) -> Relation:
    """Say how one run's non-finite elements lie to those of the original; signs are classes.

    Args:
        original: What was non-finite in the original run; empty when nothing was.
        other: The same of the other run. None where the sets were too large to keep.
    """
    if other is not None and not _elements(other):
        return "finite"
    if original is None or other is None:
        return "unknown"
    both = 0
    for name in original.keys() & other.keys():
        if original[name]["shape"] != other[name]["shape"]:
            return "unknown"
        shared = (original[name].keys() & other[name].keys()) - {"shape"}
        size = _packed_size(original[name]["shape"])
        for kind in shared:
            here = _unpack(original[name][kind], size)
            both += _bits(here & _unpack(other[name][kind], size))
    first, second = _elements(original), _elements(other)
    if both == first == second:
        return "equal"
    if both == second:
        return "subset"
    if both == first:
        return "superset"
    return "overlap" if both else "disjoint"


def _elements(packed: Mapping[str, Mapping[str, Any]]) -> int:
    return sum(
        _bits(_unpack(text, _packed_size(entry["shape"])))
        for entry in packed.values()
        for kind, text in entry.items()
        if kind != "shape"
    )


def _pack(mask: np.ndarray[Any, Any]) -> str:
    bits = np.packbits(np.ascontiguousarray(mask).reshape(-1))
    return base64.b64encode(zlib.compress(bits.tobytes(), 1)).decode("ascii")


def _packed_size(shape: Sequence[int]) -> int:
    return (math.prod(int(size) for size in shape) + 7) // 8


def _unpack(text: str, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Unpack one class; kept cells lie on disk, so neither size nor text is trusted.

    Raises:
        ValueError: It is not what was packed for a tensor of this shape.
    """
    if not 0 <= size <= MAX_UNPACKED:
        raise ValueError(f"a mask of {size} bytes")
    unpacked = zlib.decompressobj().decompress(base64.b64decode(text), size + 1)
    if len(unpacked) != size:
        raise ValueError("a mask of another size")
    return np.frombuffer(unpacked, dtype=np.uint8)


def _bits(packed: np.ndarray[Any, np.dtype[np.uint8]]) -> int:
    return int(np.unpackbits(packed).sum())
