"""Copies of a snapshot's tensors in host memory that is there already and is used again.

A copy-on-write clone becomes a whole new tensor once its original is written while it is held: on
a GPU that takes device memory for every state that is kept, and moves parameters to other
addresses. So what an update will write is copied into host memory, and the clones are let go of
before the update. Whole storages are copied: bits, strides and what shares a storage stay.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from workbench.step.transfer import Mark, Pair, Transfer, transfer_for

_ALIGNED = 64
"""Bytes; every storage begins at a multiple of it, as torch's own do."""
# Private: where a tensor's storage begins, asked without ending a copy-on-write sharing; clones of
# one storage have the same address. A test pins it.
_address_of: Callable[[Tensor], int] = torch._C._data_address  # type: ignore[attr-defined]


@dataclass(eq=False)
class _Slot:
    """Host memory for one set of copies, and the last that were begun into it."""

    memory: Tensor
    used: bool = False
    mark: Mark | None = None

    @property
    def size(self) -> int:
        """Bytes it takes."""
        return self.memory.numel()

    def is_free(self) -> bool:
        """Whether nobody reads it and nothing is being copied into it."""
        return not self.used and (self.mark is None or self.mark.is_made())

    def release(self) -> None:
        """Nobody reads it any more."""
        self.used = False


class HostPool:
    """Host memory in which copies are made, again and again in the same.

    Args:
        most_bytes: Most memory that this and what lies outside of it may take.
        outside: Bytes of what lies outside.
        let_go: Lets go of what is oldest, which may free memory; False where there is nothing.
        note: Is told what is not as it should be, in a sentence.
    """

    def __init__(
        self,
        most_bytes: int,
        outside: Callable[[], int],
        let_go: Callable[[], bool],
        note: Callable[[str], None],
    ) -> None:
        self._most_bytes = most_bytes
        self._outside = outside
        self._let_go = let_go
        self._note = note
        self._slots: list[_Slot] = []
        self._bytes = 0
        self._transfer: Transfer | None = None
        self._kinds: frozenset[str] = frozenset()

    @property
    def bytes(self) -> int:
        """Bytes of all its memory, used or not."""
        return self._bytes

    def drop_unused(self) -> bool:
        """Give back one part that is not used; False where there is none."""
        for slot in self._slots:
            if slot.is_free():
                self._slots.remove(slot)
                self._bytes -= slot.size
                return True
        return False

    def _transfer_for(self, tensors: Sequence[Tensor]) -> Transfer | None:
        devices = {t.device for t in tensors}
        kinds = frozenset(device.type for device in devices)
        if kinds != self._kinds:
            self._kinds, self._transfer = kinds, transfer_for(devices, self._note)
        return self._transfer

    def copy(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor | None], Copies] | None:
        """Begin to copy tensors.

        Args:
            tensors: Copy-on-write clones, or others that nobody writes.

        Returns:
            For each tensor its copy, to be read once the copies are made, or None where it has
            none; and the copies. None where nothing is copied.
        """
        transfer = self._transfer_for(tensors) if tensors else None
        if transfer is None:
            return None
        storages = _storages(tensors)
        size = sum(_padded(source.numel()) for source in storages.values())
        if size == 0 or size < transfer.least:
            return None
        slot = self._slot(transfer, size)
        return None if slot is None else _copy_into(slot, transfer, storages, tensors)

    def _slot(self, transfer: Transfer, size: int) -> _Slot | None:
        """Memory that is there already, more of it, or what the oldest had; None without room."""
        more = transfer.bytes_of(size)
        while more <= self._most_bytes:
            slot = self._free_slot(transfer, size)
            if slot is None and self.bytes + self._outside() + more <= self._most_bytes:
                slot = _Slot(transfer.allocate(size))
                self._slots.append(slot)
                self._bytes += slot.size
            if slot is not None:
                slot.used = True
                return slot
            if not (self.drop_unused() or self._let_go()):
                break
        return None

    def _free_slot(self, transfer: Transfer, size: int) -> _Slot | None:
        """The smallest that fits without more than half of it being wasted."""
        most = 2 * transfer.bytes_of(size)
        fitting = [slot for slot in self._slots if size <= slot.size <= most and slot.is_free()]
        return min(fitting, key=lambda slot: slot.size, default=None)


def readable(all_copies: Sequence[Copies]) -> bool:
    """Whether all copies were made; waits for those that are being made."""
    try:
        for copies in all_copies:
            copies.wait()
    except RuntimeError:  # the device was lost meanwhile
        return False
    return True


@dataclass(eq=False)
class Copies:
    """Copies that are made, or being made.

    Attributes:
        mark: How far they are.
        size: Bytes of host memory they take.
        sources: What they are copied from, until they are made.
    """

    mark: Mark
    size: int
    sources: list[Tensor] = field(default_factory=list)
    _made: bool = False

    def is_made(self) -> bool:
        """Whether the copies can be read; never waits. Lets go of the sources then."""
        if not self._made and self.mark.is_made():
            self._made = True
            self.sources = []
        return self._made

    def wait(self) -> None:
        """Wait until the copies can be read."""
        if not self._made:
            self.mark.wait()
            self._made = True
            self.sources = []

    def before_update(self, must_keep: bool) -> bool:
        """Let go of the sources before they are written, at the cost of a step at most.

        A copy that is not half made by now might hold the device back for longer than this step
        took so far. Then the sources are held on to where there is memory for both them and what
        the update writes, which is copy-on-write as it always was; else the copy is given up.

        Args:
            must_keep: Do not give it up in any case.

        Returns:
            Whether the copies will be readable.
        """
        if self.is_made():
            return True
        if self.mark.is_half_made():
            self.mark.hold_back()
            self.sources = []
            return True
        if must_keep or self.mark.has_room():
            return True
        self.sources = []
        return False


def _padded(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _storages(tensors: Sequence[Tensor]) -> dict[tuple[torch.device, int], Tensor]:
    """The bytes of each storage, once, by its place; without those that are mostly of others."""
    sources: dict[tuple[torch.device, int], Tensor] = {}
    wanted: dict[tuple[torch.device, int], int] = {}
    for t in tensors:
        if not _is_plain(t):
            continue
        place = (t.device, _address_of(t))
        wanted[place] = wanted.get(place, 0) + t.numel() * t.element_size()
        if place not in sources:
            source = torch.empty(0, dtype=torch.uint8, device=t.device)
            sources[place] = source.set_(t.untyped_storage())
    return {place: source for place, source in sources.items() if _is_mostly(wanted[place], source)}


def _is_mostly(wanted: int, source: Tensor) -> bool:
    return 2 * wanted >= source.numel()


def _is_plain(t: Tensor) -> bool:
    return (
        t.layout is torch.strided
        and t.numel() > 0
        and not (t.is_quantized or t.is_conj() or t.is_neg())
    )


def _copy_into(
    slot: _Slot,
    transfer: Transfer,
    storages: dict[tuple[torch.device, int], Tensor],
    tensors: Sequence[Tensor],
) -> tuple[list[Tensor | None], Copies]:
    # what the copies are views of: when the last of them is gone, the memory can be used again
    reader = memoryview(slot.memory.numpy().data)
    weakref.finalize(reader, slot.release).atexit = False
    views: dict[tuple[torch.device, int], Tensor] = {}
    pairs: list[Pair] = []
    offset = 0
    for place, source in storages.items():
        size = source.numel()
        views[place] = torch.frombuffer(reader, dtype=torch.uint8, count=size, offset=offset)
        pairs.append((slot.memory[offset : offset + size], source))
        offset += _padded(size)
    slot.mark = transfer.copy(pairs)
    copied: list[Tensor | None] = []
    for t in tensors:
        view = views.get((t.device, _address_of(t))) if _is_plain(t) else None
        if view is None:
            copied.append(None)
            continue
        copy = torch.empty(0, dtype=t.dtype)
        copy.set_(view.untyped_storage(), t.storage_offset(), t.shape, t.stride())
        copied.append(copy)
    copies = Copies(slot.mark, slot.size, [source for _, source in pairs])
    copies.is_made()
    return copied, copies
