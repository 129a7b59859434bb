"""The safetensors format: written without copies, read within bounds.

Files are readable by the safetensors package and by anything else that knows the format. Ours is
here because a bundle needs the digest of the bytes as they are written, and because bounds must be
checked before anything is allocated.
"""

from __future__ import annotations

import ctypes
import io
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from workbench.errors import BundleError, UsageError
from workbench.evidence.safetensors_header import DTYPES, Header
from workbench.numerics import jsonio
from workbench.numerics.limits import dtype_name

DTYPE_OF: Final[dict[str, torch.dtype]] = {
    code: getattr(torch, name) for code, name in DTYPES.items() if hasattr(torch, name)
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


class SafetensorsFile(Header):
    """The header of an open safetensors file, and its tensors on request.

    Attributes:
        index: ``{name: (dtype, shape, start, end)}``; offsets count from the data's beginning.
    """

    def __init__(self, file: io.RawIOBase | io.BufferedIOBase, size: int, name: str) -> None:
        """Read and check the header as `Header` does; a dtype that torch lacks is damage, too."""
        super().__init__(file, size, name)
        self.index: dict[str, tuple[torch.dtype, tuple[int, ...], int, int]] = {}
        for key, (code, shape, start, end) in self.entries.items():
            if code not in DTYPE_OF:
                raise self.damaged(f"the entry {key[:80]!r} is not valid")
            self.index[key] = (DTYPE_OF[code], shape, start, end)

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
                raise self.damaged("it ends before its data does")
        return t


def read_into(file: io.RawIOBase | io.BufferedIOBase, view: memoryview) -> int:
    """Read until a view is full or the file ends; how many bytes were read."""
    done = 0
    while done < len(view):
        got = file.readinto(view[done:])
        if not got:
            break
        done += got
    return done
