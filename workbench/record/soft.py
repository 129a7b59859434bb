"""Soft gates: what only writes the ledger. Batch fields, outputs and logged values may be bad."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from workbench.numerics.counts import all_finite, count
from workbench.step.domains import MOST_FIELDS, batch_fields, is_plain_batch

ALWAYS = 1 << 18
"""Elements up to which a tensor is looked at in every step; larger ones in a deep scan."""
_HASHED = 1 << 9
"""Elements of a tensor that go into the batch's fingerprint."""


Named = Sequence[tuple[str, Tensor]]
"""The fields of one batch, as ``batch_fields`` lists them."""


def scan(where: str, tree: Any, deep: bool) -> list[dict[str, Any]]:
    """List the non-finite tensors of a tree.

    Args:
        where: ``batch`` or ``outputs``.
        tree: The batch or the outputs of forward.
        deep: Whether large tensors are looked at too.
    """
    return scan_fields(where, batch_fields(tree), deep)


def scan_fields(where: str, fields: Named, deep: bool) -> list[dict[str, Any]]:
    """List the non-finite ones among fields, as ``scan`` does."""
    named = [
        (name, t.detach() if t.requires_grad else t)
        for name, t in fields
        if (t.is_floating_point() or t.is_complex()) and (deep or t.numel() <= ALWAYS)
    ]
    if not named:
        return []
    if all_finite(t for _, t in named):
        return []
    found = []
    for name, t in named:
        counts = count(t)
        if counts.nonfinite:
            found.append({"where": where, "name": name, "counts": counts.as_dict()})
    return found


def scan_values(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the non-finite ones among logged values (numbers and tensors by name)."""
    found: list[dict[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, Tensor):
            found += [entry | {"name": name} for entry in scan("logging", value, deep=True)]
        elif isinstance(value, float) and not math.isfinite(value):
            found.append({"where": "logging", "name": str(name), "value": value})
    return found


def summarize(micro_batches: Sequence[Any]) -> dict[str, Any]:
    """Shapes, dtypes and key scalars of the first micro-batch's fields, and how many there are.

    Key scalars are the batch's plain numbers and its one-element tensors in host memory: lengths,
    counts of valid tokens, loss weights. Those of a device are left out, since reading one would
    make training wait for it.
    """
    if not micro_batches:
        return {"micro_batches": 0, "fields": {}, "scalars": {}}
    return summarize_fields(micro_batches, batch_fields(micro_batches[0]))


def summarize_fields(micro_batches: Sequence[Any], named: Named) -> dict[str, Any]:
    """Summarise micro-batches, of which the first has these fields, as ``summarize`` does."""
    fields = {name: _shape(t.dtype, t.shape) for name, t in named}
    scalars: dict[str, float | int] = {
        name: t.item()
        for name, t in named
        if t.numel() == 1 and t.device.type == "cpu" and not t.is_complex()
    }
    if isinstance(micro_batches[0], Mapping):
        scalars |= {
            str(name): value
            for name, value in list(micro_batches[0].items())[:MOST_FIELDS]
            if isinstance(value, (int, float))
        }
    return {"micro_batches": len(micro_batches), "fields": fields, "scalars": scalars}


def fingerprint(micro_batches: Sequence[Any]) -> str:
    """Digest dtypes, shapes and evenly spaced elements of the batches: tells batches apart.

    Not a digest of every element: reading a large batch in full at every step would cost more than
    it tells. A bundle has the full digests.
    """
    return fingerprint_fields([batch_fields(batch) for batch in micro_batches])


def fingerprint_fields(batches: Sequence[Named]) -> str:
    """Digest the fields of batches, as ``fingerprint`` does."""
    return _fingerprint([part for named in batches for part in _parts(named)])


def _parts(named: Named) -> list[bytes]:
    parts: list[bytes] = []
    for name, t in named:
        parts.append(_title(name, t.dtype, t.shape))
        if t.is_cpu and t.layout is torch.strided and t.numel():
            parts.append(_sample(t.detach() if t.requires_grad else t))
    return parts


def _fingerprint(parts: Sequence[bytes]) -> str:
    return f"sampled:{hashlib.sha256(b''.join(parts)).hexdigest()[:32]}"


class _Shape(NamedTuple):
    """What is the same for all plain batches whose fields have the same names, dtypes, shapes."""

    titles: list[bytes]
    summed: list[bool]
    looks_closer: bool
    has_scalars: bool
    summary: dict[str, Any]


@lru_cache(maxsize=1024)
def _seen_before(fields: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]) -> _Shape:
    sizes = [math.prod(shape) for _, _, shape in fields]
    summed = [
        dtype in _SUMMED and 0 < size <= ALWAYS
        for (_, dtype, _), size in zip(fields, sizes, strict=True)
    ]
    others = [
        (dtype.is_floating_point or dtype.is_complex) and dtype not in _SUMMED
        for _, dtype, _ in fields
    ]
    shapes = {name: _shape(dtype, shape) for name, dtype, shape in fields}
    summary = {"micro_batches": 1, "fields": shapes, "scalars": {}}
    titles = [_title(name, dtype, shape) for name, dtype, shape in fields]
    return _Shape(titles, summed, any(others), 1 in sizes, summary)


class Looked:
    """What is seen of a step's micro-batches, one after the other, as a session sees them.

    Args:
        batches: The micro-batches so far.
        scans: Whether small ones are looked at for what is non-finite.

    Attributes:
        summary: As ``summarize`` gives it.
        found: The non-finite fields.
        is_known: Whether ``summary`` is the same object as for other batches of its shape.
    """

    def __init__(self, batches: Sequence[Any], scans: bool) -> None:
        self.summary: dict[str, Any] = {"micro_batches": 0, "fields": {}, "scalars": {}}
        self.found: list[dict[str, Any]] = []
        self.is_known = False
        self._scans = scans
        self._parts: list[bytes] = []
        for batch in batches:
            self.add(batch)

    def add(self, batch: Any) -> None:
        """Look at one more."""
        number = self.summary["micro_batches"]
        if not number and is_plain_batch(batch):
            self._add_plain(list(batch.items()) if type(batch) is dict else [("batch", batch)])
            return
        named = batch_fields(batch)
        self.is_known = False
        self._parts += _parts(named)
        if not number:
            self.summary = summarize_fields([batch], named)
        else:
            self.summary = self.summary | {"micro_batches": number + 1}
        self._scan(named, number)

    def _add_plain(self, named: Named) -> None:
        """Look at a first batch of tensors, of whose shape most others are, too."""
        seen = _seen_before(tuple([(name, t.dtype, t.shape) for name, t in named]))
        self.summary, self.is_known = seen.summary, not seen.has_scalars
        if seen.has_scalars:
            self.summary = summarize_fields([None], named)
        parts, finite = self._parts, True
        for (_, t), title, is_summed in zip(named, seen.titles, seen.summed, strict=True):
            parts.append(title)
            if t.is_cpu and t.layout is torch.strided and t.numel():
                parts.append(_sample(t))
            if is_summed and self._scans and finite:
                finite = math.isfinite(t.sum().item())
        if not finite or seen.looks_closer:
            self._scan(named, 0)

    def _scan(self, named: Named, number: int) -> None:
        if self._scans:
            found = scan_fields("batch", named, False)
            self.found += [entry | {"micro_step": number} for entry in found]

    @property
    def fingerprint(self) -> str:
        """As ``fingerprint`` gives it."""
        return _fingerprint(self._parts)


@lru_cache(maxsize=4096)
def _title(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> bytes:
    return f"{name}|{_shape(dtype, shape)}|".encode()


@lru_cache(maxsize=4096)
def _shape(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


def _sample(t: Tensor) -> bytes:
    if t.dtype in _NUMPY and not t.is_neg():  # numpy takes a strided sample several times faster
        flat = t.numpy().reshape(-1) if t.is_contiguous() else t.numpy().ravel()[: 1 << 16]
        return flat[:: max(1, flat.size // _HASHED)][:_HASHED].tobytes()
    flat_t = t.resolve_conj().resolve_neg().reshape(-1)[:: max(1, t.numel() // _HASHED)][:_HASHED]
    return flat_t.contiguous().view(torch.uint8).numpy().tobytes()


_SUMMED = frozenset({torch.float32, torch.float64})
"""Dtypes whose sum overflows only for values that are worth a closer look."""
_NUMPY = frozenset(
    {torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool}
)
