"""The safetensors format: written without copies, read within bounds.

Files are readable by the safetensors package and by anything else that knows the format. Ours is
here because a bundle needs the digest of the bytes as they are written, and because bounds must be
checked before anything is allocated.
"""

from __future__ import annotations

import ctypes
import io
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeGuard

import torch
from torch import Tensor

from workbench.errors import BundleError, UsageError
from workbench.numerics import jsonio
from workbench.numerics.limits import dtype_name

MAX_HEADER_BYTES: Final = 100_000_000  # the limit of the safetensors package

_CODES: Final[dict[str, str]] = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}
DTYPE_OF: Final[dict[str, torch.dtype]] = {
    code: getattr(torch, name) for name, code in _CODES.items() if hasattr(torch, name)
}
# F8_E8M0 is read but not written: the safetensors package itself does not load it into torch.
CODE_OF: Final[dict[torch.dtype, str]] = {
    dtype: code for code, dtype in DTYPE_OF.items() if code != "F8_E8M0"
}


def encode(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> list[memoryview | bytes]:
    """The file's bytes as buffers, header first; no data is copied.

    The buffers are the tensors' own memory: keep the tensors alive and unchanged while writing.

    Args:
        tensors: Contiguous CPU tensors of a dtype the format has.
        metadata: Texts for ``__metadata__``.

    Raises:
        UsageError: A tensor the format cannot hold as it is.
    """
    # Wide elements first keeps every tensor aligned to its element size.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    buffers: list[memoryview | bytes] = [b""]
    start = 0
    for name in order:
        t = tensors[name]
        code = CODE_OF.get(t.dtype)
        if code is None or not t.is_contiguous() or not t.is_cpu:
            raise UsageError(
                f"The tensor {name!r} ({dtype_name(t.dtype)}, {t.device}) cannot be stored as it "
                "is: safetensors holds contiguous CPU tensors. Use pack_tensors first."
            )
        size = t.nbytes
        end = start + size
        header[name] = {"dtype": code, "shape": list(t.shape), "data_offsets": [start, end]}
        if size:
            buffers.append(_memory(t, size))
        start = end
    text = jsonio.dumps(header).encode("ascii")
    text += b" " * (-len(text) % 8)
    buffers[0] = len(text).to_bytes(8, "little") + text
    return buffers


# Private: the type stubs lack it; a test pins what is relied on.
_address: Callable[[Tensor], int] = torch._C._data_address  # type: ignore[attr-defined]


def _memory(t: Tensor, size: int) -> memoryview:
    # _data_address leaves a copy-on-write snapshot shared; numpy() and data_ptr() would copy it.
    return memoryview((ctypes.c_ubyte * size).from_address(_address(t))).cast("B")


class SafetensorsFile:
    """The header of an open safetensors file, and its tensors on request.

    Attributes:
        metadata: The texts of ``__metadata__``.
        index: ``{name: (dtype, shape, start, end)}``; offsets count from the data's beginning.
        data_start: Where the data begins in the file.
    """

    def __init__(self, file: io.RawIOBase | io.BufferedIOBase, size: int, name: str) -> None:
        """Read and check the header.

        Args:
            file: Open for reading, seekable.
            size: Bytes the file is known to have; nothing past it is read.
            name: For messages.

        Raises:
            BundleError: Not a safetensors file, or one whose header does not add up.
        """
        self._file = file
        self._name = name
        head = file.read(8)
        length = int.from_bytes(head, "little")
        if len(head) != 8 or length > min(MAX_HEADER_BYTES, size - 8):
            raise self._damaged(f"its header claims {length} bytes of a file of {size}")
        text = file.read(length)
        if len(text) != length:
            raise self._damaged("its header is cut off")
        header = jsonio.loads(text)
        if not isinstance(header, dict):
            raise self._damaged("its header is not a JSON object")
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
            raise self._damaged("its metadata is not a table of texts")
        self.metadata: dict[str, str] = metadata
        self.data_start = 8 + length
        self.index = {key: self._entry(key, value) for key, value in header.items()}
        self._check_layout(size - self.data_start)

    def names(self) -> list[str]:
        """All names, in the order of the data."""
        return list(self.index)

    def read(self, name: str) -> Tensor:
        """One tensor, in memory of its own.

        Raises:
            BundleError: No such tensor, or the file ends early.
        """
        if name not in self.index:
            raise BundleError(
                f"{self._name!r} has no tensor {name[:120]!r}, so nothing is read in its place. "
                "`Bundle.tensor_index` lists those it has."
            )
        dtype, shape, start, end = self.index[name]
        t = torch.empty(shape, dtype=dtype)
        if end > start:
            self._file.seek(self.data_start + start)
            view = t.reshape(-1).view(torch.uint8).numpy().data
            if read_into(self._file, view) != end - start:
                raise self._damaged("it ends before its data does")
        return t

    def _entry(self, name: str, value: Any) -> tuple[torch.dtype, tuple[int, ...], int, int]:
        if not isinstance(value, dict):
            raise self._damaged(f"the entry {name[:80]!r} is not an object")
        dtype = DTYPE_OF.get(str(value.get("dtype")))
        shape, offsets = value.get("shape"), value.get("data_offsets")
        if dtype is None or not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
            raise self._damaged(f"the entry {name[:80]!r} is not valid")
        start, end = offsets
        if end - start != math.prod(shape) * dtype.itemsize:
            raise self._damaged(f"the entry {name[:80]!r} has a shape that is not its size")
        return dtype, tuple(shape), start, end

    def _check_layout(self, data_bytes: int) -> None:
        # The format has no gaps and no overlaps: every byte belongs to exactly one tensor.
        position = 0
        for _, _, start, end in sorted(self.index.values(), key=lambda entry: entry[2:]):
            if start != position:
                raise self._damaged("its tensors overlap or leave gaps")
            position = end
        if position != data_bytes:
            raise self._damaged(f"its tensors need {position} bytes and it has {data_bytes}")

    def _damaged(self, what: str) -> BundleError:
        return BundleError(
            f"{self._name!r} is not a safetensors file this version can read: {what}. "
            "Nothing from it is used; get a fresh copy of the bundle."
        )


def _naturals(value: Any) -> TypeGuard[list[int]]:
    return (
        isinstance(value, list)
        and len(value) <= 64
        and all(
            isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**62
            for item in value
        )
    )


def read_into(file: io.RawIOBase | io.BufferedIOBase, view: memoryview) -> int:
    """Read until a view is full or the file ends; how many bytes were read."""
    done = 0
    while done < len(view):
        got = file.readinto(view[done:])
        if not got:
            break
        done += got
    return done
