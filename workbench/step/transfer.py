"""How the bytes of a tensor get into host memory: at once from the CPU, beside training from a GPU.

All that is particular to a device is here. Whoever copies asks a ``Transfer`` for host memory and
hands it pairs of source and destination; the ``Mark`` that comes back tells when they are made.
A source must not be written before that, nor its memory be given back: the caller holds on to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]
"""Destination in host memory and source; both flat, of bytes, and of one size."""


class Mark(Protocol):
    """Tells how far copies are."""

    def is_made(self) -> bool:
        """Whether all bytes are there; never waits."""

    def is_half_made(self) -> bool:
        """Whether half of the bytes are there; never waits."""

    def wait(self) -> None:
        """Have the host wait until all bytes are there."""

    def hold_back(self) -> None:
        """Have the device begin nothing after this that was not begun, before they are there."""

    def has_room(self) -> bool:
        """Whether the device could hold all sources twice."""


class Transfer(Protocol):
    """Copies into host memory.

    Attributes:
        name: What kind of memory it copies into, for messages.
        least: Bytes below which copying costs more than it is worth.
    """

    name: str
    least: int

    def bytes_of(self, size: int) -> int:
        """Bytes that ``allocate`` takes for a buffer of ``size`` bytes."""

    def allocate(self, size: int) -> Tensor:
        """Host memory of at least ``size`` bytes."""

    def copy(self, pairs: Sequence[Pair]) -> Mark:
        """Copy, or begin to."""


class Made:
    """The mark of copies that were made at once."""

    def is_made(self) -> bool:
        """True."""
        return True

    is_half_made = is_made
    has_room = is_made

    def wait(self) -> None:
        """Wait for nothing."""

    hold_back = wait


class HostTransfer:
    """Copies from host memory at once; copy-on-write costs a small tensor less."""

    name = "host memory"
    least = 1 << 20

    def bytes_of(self, size: int) -> int:
        """The same number."""
        return size

    def allocate(self, size: int) -> Tensor:
        """Memory as any tensor has it."""
        return torch.empty(size, dtype=torch.uint8)

    def copy(self, pairs: Sequence[Pair]) -> Mark:
        """Copy all."""
        for destination, source in pairs:
            destination.copy_(source)
        return Made()


@dataclass
class _OnDevice:
    """The copies from one device."""

    device: torch.device
    half: torch.cuda.Event
    made: torch.cuda.Event
    size: int


class CudaMark:
    """Tells by events how far copies from CUDA devices are.

    Args:
        parts: The copies by device.
    """

    def __init__(self, parts: Sequence[_OnDevice]) -> None:
        self._parts = parts

    def is_made(self) -> bool:
        """Whether all bytes are there; never waits."""
        return all(part.made.query() for part in self._parts)

    def is_half_made(self) -> bool:
        """Whether half of the bytes are there; never waits."""
        return all(part.half.query() for part in self._parts)

    def wait(self) -> None:
        """Have the host wait until all bytes are there."""
        for part in self._parts:
            part.made.synchronize()

    def hold_back(self) -> None:
        """Have the current stream of each device wait until all bytes are there."""
        for part in self._parts:
            torch.cuda.current_stream(part.device).wait_event(part.made)

    def has_room(self) -> bool:
        """Whether each device could hold all sources twice."""
        return all(_free(part.device) > 2 * part.size for part in self._parts)


def _free(device: torch.device) -> int:
    """Bytes of a device that torch could still hand out."""
    free, _ = torch.cuda.mem_get_info(device)
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free) + int(idle)


class CudaTransfer:
    """Copies from CUDA devices into pinned memory on a stream of its own, beside training.

    The stream begins when all that was given to the device's current stream before is done, so the
    bytes are those of that moment. Nobody waits for it here.

    Args:
        note: Is told, once, where memory cannot be pinned: copies then make the host wait.
    """

    name = "pinned host memory"
    least = 0

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._pins = True
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def bytes_of(self, size: int) -> int:
        """The next power of two, which is what torch takes of pinned memory."""
        return 1 << max(size - 1, 0).bit_length() if self._pins else size

    def allocate(self, size: int) -> Tensor:
        """Pinned memory; where the system gives none, memory as any tensor has it."""
        if self._pins:
            try:
                return torch.empty(self.bytes_of(size), dtype=torch.uint8, pin_memory=True)
            except RuntimeError as error:
                self._pins = False
                self._note(
                    f"recovery points are kept in memory that is not pinned, since {size} bytes "
                    f"could not be pinned ({str(error).splitlines()[0][:120]}): the loop waits for "
                    "each copy"
                )
        return torch.empty(size, dtype=torch.uint8)

    def copy(self, pairs: Sequence[Pair]) -> Mark:
        """Begin to copy; what lies in host memory is copied at once."""
        by_device: dict[torch.device, list[Pair]] = {}
        for destination, source in pairs:
            if source.device.type == "cuda":
                by_device.setdefault(source.device, []).append((destination, source))
            else:
                destination.copy_(source)
        return CudaMark([self._begin(device, some) for device, some in by_device.items()])

    def _begin(self, device: torch.device, pairs: Sequence[Pair]) -> _OnDevice:
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = torch.cuda.Stream(device)
        size = sum(source.numel() for _, source in pairs)
        half, made = torch.cuda.Event(), torch.cuda.Event()
        stream.wait_stream(torch.cuda.current_stream(device))
        begun, noted = 0, False
        with torch.cuda.stream(stream):
            for destination, source in pairs:
                destination.copy_(source, non_blocking=True)
                begun += source.numel()
                if not noted and 2 * begun >= size:
                    half.record(stream)
                    noted = True
            made.record(stream)
        return _OnDevice(device, half, made, size)


def transfer_for(devices: Iterable[torch.device], note: Callable[[str], None]) -> Transfer | None:
    """The transfer for tensors of these devices; None where there is none for one of them."""
    kinds = {device.type for device in devices}
    if "cuda" in kinds and kinds <= {"cuda", "cpu"}:
        return CudaTransfer(note)
    return HostTransfer() if kinds == {"cpu"} else None
