"""The header of a safetensors file, read within bounds; it needs no torch.

Bounds are checked before anything is allocated: names, shapes and places come from whoever made
the file.
"""

from __future__ import annotations

import io
import math
from typing import Any, Final, TypeGuard

from workbench.errors import BundleError
from workbench.numerics import jsonio

MAX_HEADER_BYTES: Final = 100_000_000  # the limit of the safetensors package

DTYPES: Final[dict[str, str]] = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}
"""torch's name of a dtype, by the format's."""
BYTES: Final[dict[str, int]] = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
    "C64": 8,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2FNUZ": 1,
}
"""Bytes of one element, by the format's name of its dtype."""


class Header:
    """The header of an open safetensors file.

    Attributes:
        metadata: The texts of ``__metadata__``.
        entries: ``{name: (dtype code, shape, start, end)}``; offsets count from the data's
            beginning.
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
            raise self.damaged(f"its header claims {length} bytes of a file of {size}")
        text = file.read(length)
        if len(text) != length:
            raise self.damaged("its header is cut off")
        header = jsonio.loads(text)
        if not isinstance(header, dict):
            raise self.damaged("its header is not a JSON object")
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
            raise self.damaged("its metadata is not a table of texts")
        self.metadata: dict[str, str] = metadata
        self.data_start = 8 + length
        self.entries = {key: self._entry(key, value) for key, value in header.items()}
        self._check_layout(size - self.data_start)

    def _entry(self, name: str, value: Any) -> tuple[str, tuple[int, ...], int, int]:
        if not isinstance(value, dict):
            raise self.damaged(f"the entry {name[:80]!r} is not an object")
        code = str(value.get("dtype"))
        shape, offsets = value.get("shape"), value.get("data_offsets")
        if code not in BYTES or not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
            raise self.damaged(f"the entry {name[:80]!r} is not valid")
        start, end = offsets
        if end - start != math.prod(shape) * BYTES[code]:
            raise self.damaged(f"the entry {name[:80]!r} has a shape that is not its size")
        return code, tuple(shape), start, end

    def _check_layout(self, data_bytes: int) -> None:
        # The format has no gaps and no overlaps: every byte belongs to exactly one tensor.
        position = 0
        for _, _, start, end in sorted(self.entries.values(), key=lambda entry: entry[2:]):
            if start != position:
                raise self.damaged("its tensors overlap or leave gaps")
            position = end
        if position != data_bytes:
            raise self.damaged(f"its tensors need {position} bytes and it has {data_bytes}")

    def damaged(self, what: str) -> BundleError:
        """The error of a file that is not what it says."""
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
