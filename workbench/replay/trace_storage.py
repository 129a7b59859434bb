"""Identity of tensors: storages with our own write log.

Inside a dispatch mode ``_version`` is stale and several tensors share one memory, so what a tensor
holds is decided by its storage and by which events wrote to that part of it (DESIGN rule 5).
Storages are held by weak references: their memory is freed as in an ordinary step, and an address
that is used again is not mistaken for the old one.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from workbench.numerics.counts import all_finite, count
from workbench.replay.trace_plan import floating

if TYPE_CHECKING:
    from torch import Tensor

    from workbench.replay.trace_graph import Held

Triple = tuple[int, int, int]
"""Numbers of NaN, +Inf and -Inf."""

FINITE: Triple = (0, 0, 0)
MAX_WRITES_SEARCHED = 256

_free_weak_ref: Final = torch.UntypedStorage._free_weak_ref


@dataclass(frozen=True, slots=True)
class Region:
    """Which bytes of a storage a tensor covers.

    Attributes:
        start: First byte.
        stop: One past the last byte.
        dense: Whether every byte between them belongs to the tensor.
    """

    start: int
    stop: int
    dense: bool

    def overlaps(self, other: Region) -> bool:
        """Whether two regions may share bytes."""
        return self.start < other.stop and other.start < self.stop

    def covers(self, other: Region) -> bool:
        """Whether this region certainly holds all bytes of the other."""
        return self.dense and self.start <= other.start and other.stop <= self.stop


WHOLE: Final = Region(0, sys.maxsize, True)
"""All of a storage."""


class StorageRecord:
    """What is known about one storage.

    Args:
        number: Small stable number, in order of first sight.

    Attributes:
        leaf: ``(kind, name)`` when it existed before the trace began, else None.
        last: Event that wrote to it last, or -1.
        version: How often it was written.
        parts: ``(event, region)`` of every write, oldest first, since all of it was written or
            made; None where only one was.
        clean: Whether all of it is known to be finite.
        held: What whoever reads any of it reads, where that is known: all of it is finite.
        uninitialised: Event that created it without defining its content, or None.
        fingerprint: Digest-like sum of undefined content, to notice writes from outside.
        sole: The events that any part of it comes from, where that is the same for all parts: none
            before the first write, one after a write of all of it; else None.
        counted: Non-finite counts already taken, by geometry and version.
    """

    # Defaults of the class: one is made for nearly every op, and most of this is never set.
    leaf: tuple[str, str] | None = None
    last = -1
    version = 0
    parts: list[tuple[int, Region]] | None = None
    clean = False
    held: Held | None = None
    uninitialised: int | None = None
    fingerprint: int | None = None
    counted: dict[tuple[object, ...], Triple] | None = None
    sole: tuple[int, ...] | None = ()

    def __init__(self, number: int) -> None:
        self.number = number


def region_of(tensor: Tensor) -> Region:
    """Return the bytes a strided tensor covers."""
    size = tensor.element_size()
    start = int(tensor.storage_offset()) * size
    elements = tensor.numel()
    if elements == 0:
        return Region(start, start, True)
    reach = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        reach += (int(length) - 1) * int(stride)
    return Region(start, start + reach * size, elements >= reach)


class StorageLog:
    """All storages seen in a trace, and who wrote what to them.

    Attributes:
        by_address: Their records, by the address of what torch keeps of a storage.
    """

    def __init__(self) -> None:
        self.by_address: dict[int, StorageRecord] = {}
        self._kept: list[Tensor] = []
        self._references: list[Any] = []
        self._free = _free_weak_ref
        self._memory: list[tuple[int, int, tuple[str, str]]] = []

    def name_leaf(self, tensor: Tensor, kind: str, name: str) -> None:
        """Say what a tensor that exists before the step is (the first name given stays)."""
        record = self.record(tensor)
        if record.leaf is None:
            record.leaf = (kind, name)

    def name_memory(self, start: int, size: int, kind: str, name: str) -> None:
        """Say what memory is that no tensor holds yet: a numpy array of the batch."""
        self._memory.append((start, start + size, (kind, name)))

    def record(self, tensor: Tensor) -> StorageRecord:
        """Return the record of the tensor's storage, making it at first sight."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # sparse and other tensors without one
            return self.by_address.get(-id(tensor)) or self._without_storage(tensor)
        return self.by_address.get(storage._cdata) or self._first_seen(storage)

    def _first_seen(self, storage: torch.UntypedStorage) -> StorageRecord:
        found = self.by_address[storage._cdata] = StorageRecord(len(self.by_address))
        # a weak reference keeps the address from being used again
        self._references.append(storage._weak_ref())
        if self._memory and storage.device.type == "cpu":
            address_of_data = storage.data_ptr()
            found.leaf = next(
                (leaf for a, b, leaf in self._memory if a <= address_of_data < b), None
            )
        return found

    def _without_storage(self, tensor: Tensor) -> StorageRecord:
        found = self.by_address[-id(tensor)] = StorageRecord(len(self.by_address))
        self._kept.append(tensor)
        return found

    def __del__(self) -> None:
        for reference in self._references:
            self._free(reference)

    def producers(self, record: StorageRecord, region: Region) -> tuple[tuple[int, ...], bool]:
        """Find which events wrote what a region holds now.

        Returns:
            Event numbers, newest first, and whether content from before the trace remains.
        """
        if record.sole is not None:
            return record.sole, not record.sole
        found: list[int] = []
        for event, written in reversed((record.parts or [])[-MAX_WRITES_SEARCHED:]):
            if written.overlaps(region) or (written.start == region.start):
                if event not in found:
                    found.append(event)
                if written.covers(region):
                    return tuple(found), False
        if record.uninitialised is not None:
            return (*found, record.uninitialised), False
        return tuple(found), True

    def counts(self, record: StorageRecord, tensor: Tensor) -> Triple:
        """Count the non-finite elements a tensor holds now; free where all is known finite."""
        if record.clean or not floating(tensor) or tensor.numel() == 0:
            return FINITE
        key = (_geometry(tensor), record.version)
        counted = record.counted
        if counted is None:
            counted = record.counted = {}
        known = counted.get(key)
        if known is None:
            known = counted[key] = exact_counts(tensor)
            if known == FINITE and _spans_storage(tensor):
                record.clean = True
                sole, leaf = record.sole, record.leaf
                if sole or (leaf is not None and sole is not None):
                    record.held = (record.number, sole, None if sole else leaf, FINITE)
        return known

    def wrote(self, tensor: Tensor, event: int, finite: bool) -> StorageRecord:
        """Note that an event wrote a tensor; returns its storage's record."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            record, whole = self.record(tensor), True
        else:
            found = self.by_address.get(storage._cdata)
            record = self._first_seen(storage) if found is None else found
            whole = tensor.numel() * tensor.itemsize >= storage.nbytes() or (
                tensor.layout is not torch.strided
            )
        if whole:
            if record.version:
                record.parts = record.uninitialised = None
            record.sole = sole = (event,)
            record.clean = finite
            record.held = (record.number, sole, None, FINITE) if finite else None
        else:
            if record.parts is None:
                whole_by = record.sole if record.uninitialised is None else None
                record.parts = [(one, WHOLE) for one in whole_by or ()]
            record.parts.append((event, region_of(tensor)))
            record.sole = record.held = None
            record.clean = finite and record.clean
        record.last = event
        record.version += 1
        return record

    def made(self, tensor: Tensor, event: int) -> int:
        """Note that an event made a strided tensor, all of it finite; its storage's number."""
        storage = tensor.untyped_storage()
        records, address = self.by_address, storage._cdata
        if address in records or self._memory or tensor.nbytes < storage.nbytes():
            return self.wrote(tensor, event, True).number
        number = len(records)
        records[address] = record = StorageRecord(number)
        self._references.append(storage._weak_ref())
        record.sole = sole = (event,)
        record.held = (number, sole, None, FINITE)
        record.last, record.version, record.clean = event, 1, True
        return number

    def created_undefined(self, record: StorageRecord, event: int, tensor: Tensor) -> None:
        """Note that an event made memory without defining its content."""
        record.last, record.parts = -1, None
        record.version += 1
        record.uninitialised = event
        record.sole = sole = (event,)
        record.clean = clean = not floating(tensor)
        record.held = (record.number, sole, None, FINITE) if clean else None
        record.fingerprint = _fingerprint(tensor)

    def changed_unseen(self, record: StorageRecord, tensor: Tensor) -> bool:
        """Whether undefined memory was meanwhile written by something the trace cannot see."""
        return record.fingerprint is not None and record.fingerprint != _fingerprint(tensor)


def exact_counts(tensor: Tensor) -> Triple:
    """Count NaN, +Inf and -Inf, with a cheap all-finite test first."""
    if not floating(tensor) or tensor.numel() == 0 or all_finite([tensor]):
        return FINITE
    counts = count(tensor)
    return (counts.nan, counts.pos_inf, counts.neg_inf)


def _geometry(tensor: Tensor) -> tuple[object, ...]:
    if tensor.layout != torch.strided:
        return (id(tensor),)
    return (tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _spans_storage(tensor: Tensor) -> bool:
    if tensor.layout is not torch.strided:
        return True
    return tensor.numel() * tensor.itemsize >= tensor.untyped_storage().nbytes()


def _fingerprint(tensor: Tensor) -> int | None:
    """A cheap position-dependent sum over the whole storage's bytes."""
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        return None
    storage = tensor.untyped_storage()
    if storage.nbytes() == 0:
        return None
    data = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
    words = data[: data.numel() // 8 * 8].view(torch.int64)
    tail = int(data[words.numel() * 8 :].sum())
    # wrapping arithmetic is wanted: equal bytes give equal sums
    weights = torch.arange(1, words.numel() + 1, dtype=torch.int64, device=data.device)
    return int((words * weights).sum()) ^ tail
