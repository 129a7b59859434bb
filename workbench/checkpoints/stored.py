"""Tensors as they lie in checkpoint files: found without loading them, read piece by piece."""

from __future__ import annotations

import io
import math
import stat
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from workbench.checkpoints.pickled import (
    MOST_DESCRIPTION,
    Name,
    Record,
    Reference,
    read_pickle,
)
from workbench.errors import BundleError, CheckpointError
from workbench.evidence.safetensors_file import SafetensorsFile
from workbench.evidence.store import Window

MOST_PARTS: Final = 20_000_000
"""Parts of a description that are looked at."""
_DEPTH: Final = 64

_STORAGES: Final[dict[str, torch.dtype]] = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexDoubleStorage": torch.complex128,
    "ComplexFloatStorage": torch.complex64,
}


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor's elements lie.

    Attributes:
        name: Its path within the checkpoint, parts joined by dots.
        dtype: Its dtype.
        shape: Its shape.
        file: The file.
        start: First byte in the file.
        size: Bytes; the smallest run that has all its elements.
        dense: Whether the run holds nothing else.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    file: Path
    start: int
    size: int
    dense: bool = True


@dataclass(frozen=True)
class StoredNumber:
    """A Python float of a checkpoint, by its path."""

    name: str
    value: float


Stored = StoredTensor | StoredNumber


def _whole_of(path: Path) -> int:
    """Bytes of a regular file: a pipe would be waited for, and a device has no end.

    Raises:
        CheckpointError: It is none.
        OSError: It is not there.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointError(
            f"The checkpoint file {str(path)!r} is a pipe or a device, no regular file, so it was "
            "not opened. Remove it, or resume from another checkpoint."
        )
    return found.st_size


def safetensors_tensors(path: Path) -> Iterator[Stored]:
    """The tensors of a safetensors file.

    Raises:
        CheckpointError: The file does not add up.
        OSError: It cannot be read.
    """
    size = _whole_of(path)
    with path.open("rb") as file:
        try:
            header = SafetensorsFile(file, size, path.name)
        except BundleError as error:
            raise CheckpointError(
                f"The checkpoint file {str(path)!r} is damaged: {error} Nothing of it is to be "
                "resumed from; resume from an earlier one."
            ) from error
    for name, (dtype, shape, start, end) in header.index.items():
        yield StoredTensor(name, dtype, shape, path, header.data_start + start, end - start)


def torch_tensors(
    path: Path, start: int = 0, size: int | None = None, prefix: str = ""
) -> Iterator[Stored]:
    """The tensors and floats of what ``torch.save`` wrote, without running any of it.

    Args:
        path: The file.
        start: Where in the file it begins.
        size: How many bytes it has; None to the end of the file.
        prefix: Put before every name.

    Raises:
        CheckpointError: Damaged, or of the format from before torch 1.6.
        OSError: It cannot be read.
    """
    whole = _whole_of(path)
    length = whole - start if size is None else size
    if start < 0 or length < 0 or start + length > whole:
        raise CheckpointError(
            f"The checkpoint file {str(path)!r} has {whole} bytes, but bytes {start} to "
            f"{start + length} of it are asked for, so it was cut off. Get a fresh copy."
        )
    with path.open("rb") as raw:
        part = _Part(raw, start, length)
        try:
            archive = zipfile.ZipFile(part)
            description, folder = _description(archive, path)
            storages = _storages(archive, part, folder, start)
        except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, ValueError) as error:
            raise CheckpointError(
                f"The checkpoint file {str(path)!r} is not one that torch.save of version 1.6 or "
                f"newer wrote, or is damaged ({error}), so its tensors cannot be found without "
                "loading it. Save it again with a current torch, or as safetensors."
            ) from error
    tree = read_pickle(description, str(path))
    yield from _Walk(path, storages).of(tree, prefix)


def _description(archive: zipfile.ZipFile, path: Path) -> tuple[bytes, str]:
    for info in archive.infolist():
        folder, _, name = info.filename.partition("/")
        if name == "data.pkl":
            if info.file_size > MOST_DESCRIPTION or info.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"its description has {info.file_size} bytes")
            return archive.read(info), folder
    raise CheckpointError(
        f"The file {str(path)!r} is a zip archive without a description of tensors, so it is no "
        "checkpoint of torch. Leave it out, or give the file that torch.save wrote."
    )


def _storages(
    archive: zipfile.ZipFile, part: _Part, folder: str, start: int
) -> dict[str, tuple[int, int]]:
    """Where each storage lies: first byte in the file, and size."""
    found: dict[str, tuple[int, int]] = {}
    head = f"{folder}/data/"
    for info in archive.infolist():
        if not info.filename.startswith(head):
            continue
        part.seek(info.header_offset)
        local = part.read(30)
        if len(local) != 30 or local[:4] != b"PK\x03\x04" or info.compress_type:
            raise ValueError(f"the entry {info.filename[:80]!r} is damaged or compressed")
        begins = info.header_offset + 30 + _two(local, 26) + _two(local, 28)
        if begins + info.file_size > part.size:
            raise ValueError(f"the entry {info.filename[:80]!r} goes past the end")
        found[info.filename.removeprefix(head)] = (start + begins, info.file_size)
    return found


def _two(data: bytes, position: int) -> int:
    return int.from_bytes(data[position : position + 2], "little")


class _Part(Window):
    """A part of a file as a file of its own."""

    def __init__(self, file: io.BufferedReader, start: int, size: int) -> None:
        super().__init__(size)
        self._file = file
        self._start = start

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)[: max(0, self.size - self._position)]
        self._file.seek(self._start + self._position)
        got = self._file.readinto(view)
        self._position += got
        return got


# -- walking what the description says -------------------------------------------------------------


class _Walk:
    """Finds tensors and floats in a description; bounded, since parts may be shared endlessly."""

    def __init__(self, path: Path, storages: Mapping[str, tuple[int, int]]) -> None:
        self._path = path
        self._storages = storages
        self._seen = 0

    def of(self, value: Any, name: str, above: frozenset[int] = frozenset()) -> Iterator[Stored]:
        """What lies in a value, by path."""
        if isinstance(value, float):
            yield StoredNumber(name, value)
            return
        if not isinstance(value, Record | Mapping | list | tuple | set):
            return
        if id(value) in above or len(above) > _DEPTH:  # a structure that has itself in it
            return
        if isinstance(value, Record) and (
            tensor := _tensor(value, name, self._path, self._storages)
        ):
            yield tensor
            return
        for key, item in _children(value):
            self._count()
            inner = f"{name}.{key}" if name and key else name or key
            yield from self.of(item, inner, above | {id(value)})

    def _count(self) -> None:
        self._seen += 1
        if self._seen > MOST_PARTS:
            raise CheckpointError(
                f"The checkpoint file {str(self._path)!r} describes more than {MOST_PARTS:,} "
                "parts, so it was not read further. A checkpoint of a model has far fewer; check "
                "the file."
            )


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Record):
        yield from ((_key(key), item) for key, item in value.items.items())
        yield from ((str(i), item) for i, item in enumerate(value.entries))
        yield from (("", item) for item in value.arguments)
        yield "", value.state
    elif isinstance(value, Mapping):
        yield from ((_key(key), item) for key, item in value.items())
    else:
        yield from ((str(i), item) for i, item in enumerate(value))


def _key(key: Any) -> str:
    return str(key)[:200] if isinstance(key, str | int | float | bool) else type(key).__name__


def _tensor(
    record: Record, name: str, path: Path, storages: Mapping[str, tuple[int, int]]
) -> StoredTensor | None:
    """The tensor a record rebuilds, or None where it is something else."""
    kind = record.name
    if not kind.startswith("torch._utils._rebuild_tensor") or len(record.arguments) < 4:
        return None
    storage, offset, shape, strides = record.arguments[:4]
    shape, strides = _size(shape), _size(strides)
    where = storage.id if isinstance(storage, Reference) else None
    if not isinstance(where, tuple) or len(where) < 5 or str(where[2]) not in storages:
        return None
    dtype = _STORAGES.get(where[1].name if isinstance(where[1], Name) else "")
    if kind.endswith("_v3") and len(record.arguments) > 6 and isinstance(record.arguments[6], Name):
        dtype = getattr(torch, record.arguments[6].name, None)
    if not isinstance(dtype, torch.dtype) or shape is None or strides is None:
        return None
    if not isinstance(offset, int) or len(shape) != len(strides):
        return None
    begins, size = storages[str(where[2])]
    elements = math.prod(shape)
    span = 0 if elements == 0 else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    start, length = offset * dtype.itemsize, span * dtype.itemsize
    if offset < 0 or start + length > size:
        raise CheckpointError(
            f"The tensor {name[:200]!r} of {str(path)!r} needs bytes {start} to {start + length} "
            f"of a storage that has {size}, so the checkpoint is damaged. Get a fresh copy."
        )
    return StoredTensor(name, dtype, shape, path, begins + start, length, span == elements)


def _size(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, Record) and value.name == "torch.Size" and value.arguments:
        value = value.arguments[0]
    if isinstance(value, list | tuple) and all(isinstance(n, int) and n >= 0 for n in value):
        return tuple(value)
    return None
