"""Tensors as safetensors can hold them, and back, with what safetensors does not know.

A contiguous tensor is stored as it is. Strides, storage shared between tensors, layouts, dtypes the
format lacks and ``requires_grad`` are kept in a *spec*: strides choose kernels and so decide bits,
and a tied weight restored as two would train as two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from workbench.errors import BundleError, UsageError
from workbench.evidence.safetensors_file import CODE_OF
from workbench.numerics.dense import PLAIN, as_bytes
from workbench.numerics.limits import dtype_name, dtype_of

# A strided tensor is restored with its gaps only while they are this much of it at most.
_MAX_SPREAD: Final = 64
_SPREAD_FREE: Final = 4096  # elements; small tensors may be as sparse as they like
# A view repeats stored elements (expand); beyond this it is a bomb rather than a batch.
_MAX_REPEAT: Final = 4096
_REPEAT_FREE: Final = 64 << 20  # bytes
_COMPRESSED: Final[dict[torch.layout, tuple[str, str]]] = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}
_LAYOUTS: Final = {str(layout).removeprefix("torch."): layout for layout in _COMPRESSED}

Spec = dict[str, Any]


@dataclass(slots=True)
class Packed:
    """What is stored, and how to get the tensors back.

    Attributes:
        stored: Contiguous CPU tensors by the names they have in the file.
        specs: Per tensor name what the stored form does not say; absent for a plain tensor.
        taken: Names of tensors and of stored pieces.
    """

    stored: dict[str, Tensor] = field(default_factory=dict)
    specs: dict[str, Spec] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def free_name(self, wanted: str) -> str:
        """A name for a stored piece that no tensor has."""
        name, number = wanted, 2
        while name in self.taken:
            name, number = f"{wanted}~{number}", number + 1
        self.taken.add(name)
        return name


def pack_tensors(tensors: Mapping[str, Tensor]) -> Packed:
    """Pack named tensors; overlapping storage is stored once.

    Args:
        tensors: Any dtypes, layouts and devices. Distributed tensors are stored as their local
            part. What has no values (meta) keeps its shape; what cannot be stored (quantised) is
            recorded as missing.
    """
    packed = Packed(taken=set(tensors))
    shared = _shared_storages(tensors)
    strided: dict[str, Tensor] = {}
    for name, original in tensors.items():
        if original.requires_grad:
            packed.specs[name] = {"requires_grad": True}
        if name not in shared and _is_plain(original):
            packed.stored[name] = original.detach()
            continue
        spec = _pack_other(packed, name, original, strided)
        if spec:
            packed.specs.setdefault(name, {}).update(spec)
    for group in _overlapping(strided):
        if len(group) == 1 and not _overlaps_itself(strided[group[0]]):
            _pack_alone(packed, group[0], strided[group[0]])
        else:
            _pack_shared(packed, group, strided)
    return packed


def cannot_store(t: Tensor) -> str | None:
    """Why a tensor's values cannot be stored, in words; None when they can."""
    if t.is_quantized:
        return f"quantised tensor ({dtype_name(t.dtype)})"
    if t.is_nested:
        return "nested tensor"
    if t.layout not in {torch.strided, torch.sparse_coo, *_COMPRESSED}:
        return f"tensor of layout {t.layout}"
    return None


def _is_plain(t: Tensor) -> bool:
    """Whether a tensor can be stored as it is."""
    return (
        type(t) in PLAIN
        and t.is_cpu
        and t.layout is torch.strided
        and t.dtype in CODE_OF
        and t.is_contiguous()
        and not t.is_conj()
        and not t.is_neg()
    )


def _shared_storages(tensors: Mapping[str, Tensor]) -> set[str]:
    """Names of the tensors whose storage another one has too."""
    first: dict[int, str] = {}
    shared: set[str] = set()
    for name, t in tensors.items():
        if type(t) in PLAIN and t.layout is torch.strided:
            other = first.setdefault(t.untyped_storage()._cdata, name)
            if other is not name:
                shared |= {name, other}
    return shared


def _pack_other(packed: Packed, name: str, t: Tensor, strided: dict[str, Tensor]) -> Spec:
    """A tensor that is not plain: its spec, and itself in ``strided`` where strides decide."""
    spec: Spec = {}
    t = t.detach()
    to_local = getattr(t, "to_local", None)
    if to_local is not None:
        spec["global_shape"] = list(t.shape)
        t = to_local()
    if t.device.type == "meta":
        return spec | {"meta": True, "shape": list(t.shape), "dtype": dtype_name(t.dtype)}
    if not t.is_cpu:
        spec["device"] = str(t.device)
    if reason := cannot_store(t):
        spec["missing"] = reason
    elif t.layout is torch.strided:
        strided[name] = t.resolve_conj().resolve_neg()
    else:
        spec |= _pack_sparse(packed, name, t)
    return spec


def unpack_tensors(
    read: Callable[[str], Tensor], specs: Mapping[str, Any], names: Iterable[str]
) -> dict[str, Tensor]:
    """Restore tensors on the CPU.

    Args:
        read: Gives the stored tensor of a name, in memory of its own.
        specs: As from ``pack_tensors``; untrusted.
        names: Which tensors to restore. Those recorded as missing are left out.

    Raises:
        BundleError: A spec that contradicts what is stored.
    """
    cache: dict[str, Tensor] = {}

    def stored(name: str) -> Tensor:
        if name not in cache:
            cache[name] = read(name)
        return cache[name]

    result: dict[str, Tensor] = {}
    for name in names:
        spec = specs.get(name, {})
        try:
            t = None if "missing" in spec else _restore(name, spec, stored)
            if t is not None and spec.get("requires_grad") is True:
                t.requires_grad_(True)
        except BundleError:
            raise
        except (
            UsageError,
            KeyError,
            TypeError,
            ValueError,
            RuntimeError,
            AttributeError,
            OverflowError,
        ) as e:
            raise BundleError(
                f"The tensor {name[:120]!r} cannot be restored: what its file says about it does "
                f"not fit what is stored ({e}). Nothing of it is used; get a fresh copy of the "
                "bundle."
            ) from e
        if t is not None:
            result[name] = t
    return result


def _pack_alone(packed: Packed, name: str, t: Tensor) -> None:
    if not t.is_contiguous() and t.numel() and _spread(t.shape, t.stride()) <= _allowed(t.numel()):
        packed.specs.setdefault(name, {})["stride"] = list(t.stride())
    packed.stored[name], extra = _storable(t.cpu().contiguous())
    if extra:
        packed.specs.setdefault(name, {}).update(extra)


def _storable(t: Tensor) -> tuple[Tensor, Spec]:
    """A contiguous tensor in a dtype the format has; wider ones through their parts."""
    if t.dtype in CODE_OF:
        return t, {}
    extra: Spec = {"dtype": dtype_name(t.dtype), "shape": list(t.shape)}
    if t.dtype is torch.complex128:
        return torch.view_as_real(t).contiguous(), extra
    return as_bytes(t), extra


def _pack_shared(packed: Packed, group: list[str], tensors: Mapping[str, Tensor]) -> None:
    low = min(_interval(tensors[name])[0] for name in group)
    high = max(_interval(tensors[name])[1] for name in group)
    owner = next(
        (
            name
            for name in group
            if _interval(tensors[name]) == (low, high)
            and tensors[name].is_contiguous()
            and tensors[name].dtype in CODE_OF
        ),
        None,
    )
    hidden = owner is None
    if owner is None:
        owner = packed.free_name("storage")
        any_t = tensors[group[0]]
        raw = torch.empty(0, dtype=torch.uint8, device=any_t.device)
        raw.set_(any_t.untyped_storage(), low, (high - low,), (1,))
        packed.stored[owner] = raw.cpu()
    else:
        packed.stored[owner] = tensors[owner].cpu()
    for name in group:
        t = tensors[name]
        if name == owner:
            continue
        packed.specs.setdefault(name, {}).update(
            {
                "storage": owner,
                "offset": t.storage_offset() * t.element_size() - low,
                "dtype": dtype_name(t.dtype),
                "shape": list(t.shape),
                "stride": list(t.stride()),
            }
            | ({"hidden": True} if hidden else {})
        )


def _pack_sparse(packed: Packed, name: str, t: Tensor) -> Spec:
    spec: Spec = {"layout": str(t.layout).removeprefix("torch."), "shape": list(t.shape)}
    if t.layout is torch.sparse_coo:
        spec["coalesced"] = t.is_coalesced()
        pieces = {"indices": t._indices(), "values": t._values()}
    else:
        outer, inner = _COMPRESSED[t.layout]
        pieces = {outer: getattr(t, outer)(), inner: getattr(t, inner)(), "values": t.values()}
    spec["parts"] = {}
    for part, values in pieces.items():
        key = packed.free_name(f"{name}:{part}")
        spec["parts"][part] = key
        _pack_alone(packed, key, values)
    return spec


def _interval(t: Tensor) -> tuple[int, int]:
    """The bytes of its storage a tensor touches."""
    size = t.element_size()
    start = t.storage_offset() * size
    return int(start), int(start + _spread(t.shape, t.stride()) * size)


def _spread(shape: Iterable[int], stride: Iterable[int]) -> int:
    """Elements from the first to the last one touched."""
    return sum((n - 1) * step for n, step in zip(shape, stride, strict=True)) + 1


def _allowed(numel: int) -> int:
    return _MAX_SPREAD * numel + _SPREAD_FREE


def _overlaps_itself(t: Tensor) -> bool:
    """Whether two indices may mean one element (expand, unfold)."""
    reach = 1
    for step, n in sorted(zip(t.stride(), t.shape, strict=True)):
        if n > 1:
            if step < reach:
                return t.numel() > 0
            reach = step * (n - 1) + reach
    return False


def _overlapping(tensors: Mapping[str, Tensor]) -> list[list[str]]:
    """Names in groups whose memory overlaps, in order of first appearance."""
    storages: dict[int, list[str]] = {}
    groups: list[list[str]] = []
    for name, t in tensors.items():
        if t.numel() == 0:
            groups.append([name])
        else:
            storages.setdefault(t.untyped_storage()._cdata, []).append(name)
    for names in storages.values():
        reach = -1
        for name in sorted(names, key=lambda n: _interval(tensors[n])):
            low, high = _interval(tensors[name])
            if low < reach:
                groups[-1].append(name)
            else:
                groups.append([name])
            reach = max(reach, high)
    return groups


def _restore(name: str, spec: Any, stored: Callable[[str], Tensor]) -> Tensor:
    if not isinstance(spec, dict):
        raise TypeError("its description is not an object")
    if spec.get("meta") is True:
        return torch.empty(_sizes(spec["shape"]), dtype=dtype_of(spec["dtype"]), device="meta")
    if "layout" in spec:
        return _restore_sparse(spec, stored)
    if "storage" in spec:
        return _restore_view(spec, stored(spec["storage"]))
    t = stored(name)
    if "dtype" in spec:
        t = _reinterpret(t, dtype_of(spec["dtype"]), _sizes(spec["shape"]))
    if "stride" in spec:
        stride = _sizes(spec["stride"])
        if len(stride) != t.dim() or _spread(t.shape, stride) > _allowed(t.numel()):
            raise ValueError("strides out of bounds")
        if _overlaps_itself(torch.empty_strided(t.shape, stride, device="meta")):
            raise ValueError("strides that overlap")
        t = torch.empty_strided(t.shape, stride, dtype=t.dtype).copy_(t)
    return t


def _reinterpret(t: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if dtype is torch.complex128 and t.dtype is torch.float64:
        return torch.view_as_complex(t.reshape(-1, 2)).reshape(shape)
    return as_bytes(t).view(dtype).reshape(shape)


def _restore_view(spec: Spec, base: Tensor) -> Tensor:
    dtype, shape, stride = dtype_of(spec["dtype"]), _sizes(spec["shape"]), _sizes(spec["stride"])
    if not base.is_contiguous() or len(stride) != len(shape):
        raise ValueError("a view of what is no storage")
    (offset,) = _sizes([spec["offset"]])
    size = base.numel() * base.element_size()
    end = offset + (_spread(shape, stride) * dtype.itemsize if math.prod(shape) else 0)
    if offset % dtype.itemsize or end > size:
        raise ValueError("a view that reaches outside its storage")
    if math.prod(shape) * dtype.itemsize > _MAX_REPEAT * size + _REPEAT_FREE:
        raise ValueError("a view that repeats its storage too often")
    t = torch.empty(0, dtype=dtype)
    base_offset = base.storage_offset() * base.element_size()
    t.set_(base.untyped_storage(), (base_offset + offset) // dtype.itemsize, shape, stride)
    return t


def _restore_sparse(spec: Spec, stored: Callable[[str], Tensor]) -> Tensor:
    shape, parts = _sizes(spec["shape"]), spec["parts"]
    values = stored(parts["values"])
    if spec["layout"] == "sparse_coo":
        t = torch.sparse_coo_tensor(stored(parts["indices"]), values, shape, check_invariants=True)
        return t._coalesced_(True) if spec.get("coalesced") is True else t
    layout = _LAYOUTS[spec["layout"]]
    outer, inner = (stored(parts[part]) for part in _COMPRESSED[layout])
    return torch.sparse_compressed_tensor(
        outer, inner, values, shape, layout=layout, check_invariants=True
    )


def _sizes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > 64:
        raise TypeError("sizes are not a list")
    for item in value:
        if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item < 2**62:
            raise ValueError("a size is out of range")
    return tuple(value)
