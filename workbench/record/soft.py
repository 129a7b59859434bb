"""Soft gates: what only writes the ledger. Batch fields, outputs and logged values may be bad."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from workbench.numerics.counts import all_finite, count
from workbench.step.domains import MOST_FIELDS, batch_fields

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


class Looked:
    """What is seen of a step's micro-batches, one after the other, as a session sees them.

    Args:
        batches: The micro-batches so far.
        scans: Whether small ones are looked at for what is non-finite.

    Attributes:
        summary: As ``summarize`` gives it.
        found: The non-finite fields.
    """

    def __init__(self, batches: Sequence[Any], scans: bool) -> None:
        self.summary: dict[str, Any] = {"micro_batches": 0, "fields": {}, "scalars": {}}
        self.found: list[dict[str, Any]] = []
        self._scans = scans
        self._parts: list[bytes] = []
        for batch in batches:
            self.add(batch)

    def add(self, batch: Any) -> None:
        """Look at one more."""
        named = batch_fields(batch)
        number = self.summary["micro_batches"]
        self._parts += _parts(named)
        if not number:
            self.summary = summarize_fields([batch], named)
        else:
            self.summary["micro_batches"] = number + 1
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


_NUMPY = frozenset(
    {torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool}
)
