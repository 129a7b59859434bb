"""Where a bundle's files lie when it is read: a directory, or one uncompressed zip.

The same two in an object store or behind a web server are in ``remote``.
"""

from __future__ import annotations

import io
import os
import stat
import zipfile
from pathlib import Path
from typing import Any, Final, Protocol

from workbench.errors import BundleError
from workbench.evidence.schema import MANIFEST, check_name

_MAX_MEMBERS: Final = 100_000


class Store(Protocol):
    """Read access to the files of a bundle by checked name."""

    def size(self, rel: str) -> int | None:
        """Bytes of a file, or None when it is not there as a regular file."""

    def open(self, rel: str, size: int) -> io.RawIOBase:
        """Open a file of which no more than ``size`` bytes are read."""

    def read_small(self, rel: str, limit: int) -> bytes:
        """A whole file of at most ``limit`` bytes."""

    def names(self, prefix: str) -> list[str]:
        """Names that begin so, of a packed bundle; a directory keeps results beside itself."""


class DirectoryStore:
    """A bundle as a directory. Links are refused, also in the middle of a path."""

    def __init__(self, root: Path) -> None:
        """Take a directory."""
        self._root = root

    def size(self, rel: str) -> int | None:
        """See ``Store``."""
        path = self._root
        try:
            for part in rel.split("/"):
                path = path / part
                mode = path.lstat()
                if stat.S_ISLNK(mode.st_mode):
                    raise _link(rel)
        except OSError:
            return None
        return mode.st_size if stat.S_ISREG(mode.st_mode) else None

    def open(self, rel: str, size: int) -> io.RawIOBase:
        """See ``Store``."""
        if self.size(rel) is None:
            raise _absent(rel)
        try:
            # Not following a link even if one appears between the check and here.
            descriptor = os.open(self._root / rel, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise _absent(rel) from error
        return _Bounded(io.FileIO(descriptor, "rb"), 0, size)

    def read_small(self, rel: str, limit: int) -> bytes:
        """See ``Store``."""
        size = self.size(rel)
        if size is None:
            raise BundleError(
                f"{str(self._root)!r} has no {rel}, so it is no bundle, or one whose writing was "
                "cut off before its first manifest. `workbench list` shows the bundles of a folder."
            )
        if size > limit:
            raise BundleError(
                f"The {rel} of {str(self._root)!r} has {size} bytes; no bundle needs more than "
                f"{limit}. It was not read."
            )
        with self.open(rel, size) as file:
            return _read_all(file, size)

    def names(self, prefix: str) -> list[str]:
        """See ``Store``."""
        return []


class ZipStore:
    """A bundle as one zip whose members are stored uncompressed."""

    def __init__(self, path: Path | str) -> None:
        """Read the zip's directory.

        Raises:
            BundleError: Not a zip, or one a bundle is never packed as.
        """
        self._path = path
        try:
            with self._file() as file:
                with zipfile.ZipFile(file) as archive:
                    members = archive.infolist()
                self._end = file.seek(0, os.SEEK_END)
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError) as error:
            raise BundleError(
                f"{str(path)!r} is neither a bundle directory nor a zip of one ({error}). "
                "Nothing was read; get a fresh copy."
            ) from error
        if len(members) > _MAX_MEMBERS:
            raise BundleError(
                f"{str(path)!r} has {len(members):,} files, and no bundle has more than "
                f"{_MAX_MEMBERS:,}, so it was not read. Get a fresh copy of the bundle."
            )
        self._members: dict[str, zipfile.ZipInfo] = {}
        prefix = _prefix(members)
        for member in members:
            if member.filename.endswith("/"):  # is_dir() fails on a member without a name
                continue
            rel = member.filename.removeprefix(prefix)
            self._take(rel, member)

    def _file(self) -> io.RawIOBase:
        """The zip itself, open for reading."""
        return io.FileIO(self._path, "rb")

    def _take(self, rel: str, member: zipfile.ZipInfo) -> None:
        if not member.filename.isprintable() or rel in self._members:
            raise BundleError(
                f"{str(self._path)!r} holds {rel[:80]!r} twice, or under an unprintable name. "
                "Which one was meant cannot be told, so nothing is used."
            )
        if rel != MANIFEST:
            check_name(rel)
        if stat.S_ISLNK(member.external_attr >> 16):
            raise _link(rel)
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
            raise BundleError(
                f"{rel!r} in {str(self._path)!r} is compressed or encrypted. Bundles are packed "
                "uncompressed, so that no small file can unfold into a large one; unpack it with "
                "another tool, or pack it again with `workbench pack`."
            )
        inside = 0 <= member.header_offset <= self._end - member.file_size
        if member.file_size != member.compress_size or not inside:
            raise BundleError(
                f"{rel!r} in {str(self._path)!r} claims a size or place the zip does not have. "
                "The zip is damaged or made up; get a fresh copy."
            )
        self._members[rel] = member

    def size(self, rel: str) -> int | None:
        """See ``Store``."""
        member = self._members.get(rel)
        return None if member is None else member.file_size

    def open(self, rel: str, size: int) -> io.RawIOBase:
        """See ``Store``."""
        member = self._members.get(rel)
        if member is None:
            raise _absent(rel)
        try:
            file = self._file()
        except OSError as error:
            raise _absent(rel) from error
        try:
            start = _data_start(file, member)
        except BaseException:
            file.close()
            raise
        return _Bounded(file, start, size)

    def read_small(self, rel: str, limit: int) -> bytes:
        """See ``Store``."""
        member = self._members.get(rel)
        if member is None:
            raise BundleError(
                f"{str(self._path)!r} has no {rel}, so it is not a packed bundle and nothing of it "
                "was read. `workbench pack` makes one of a bundle's folder."
            )
        if member.file_size > limit:
            raise BundleError(
                f"The {rel} of {str(self._path)!r} has {member.file_size} bytes; no bundle needs "
                f"more than {limit}. It was not read."
            )
        with self.open(rel, member.file_size) as file:
            return _read_all(file, member.file_size)

    def names(self, prefix: str) -> list[str]:
        """See ``Store``."""
        return sorted(name for name in self._members if name.startswith(prefix))


class Window(io.RawIOBase):
    """So many bytes of something larger, as a file of its own; what reads them is a subclass's.

    Args:
        size: Its bytes.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self._position = 0

    def readable(self) -> bool:
        """See ``io``."""
        return True

    def seekable(self) -> bool:
        """See ``io``."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """See ``io``; a place before the beginning is the beginning."""
        self._position = max(0, self._place(offset, whence))
        return self._position

    def tell(self) -> int:
        """See ``io``."""
        return self._position

    def _place(self, offset: int, whence: int) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        return base + offset


class _Bounded(Window):
    """A window of a file: no byte outside of it can be read."""

    def __init__(self, file: io.RawIOBase, start: int, size: int) -> None:
        super().__init__(size)
        self._file = file
        self._start = start

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), max(0, self.size - self._position))
        if wanted == 0:
            return 0
        self._file.seek(self._start + self._position)
        got: int = self._file.readinto(view[:wanted]) or 0
        self._position += got
        return got

    def read(self, size: int = -1) -> bytes:
        wanted = max(0, self.size - self._position)
        wanted = wanted if size < 0 else min(size, wanted)
        self._file.seek(self._start + self._position)
        data = _read_all(self._file, wanted)
        self._position += len(data)
        return data

    def close(self) -> None:
        self._file.close()
        super().close()


def _read_all(file: io.RawIOBase, size: int) -> bytes:
    pieces = []
    while size > 0:
        piece = file.read(min(size, 64 << 20))
        if not piece:
            break
        pieces.append(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _prefix(members: list[zipfile.ZipInfo]) -> str:
    """The one folder around everything, as other zip tools make it, or nothing."""
    tops = [m.filename for m in members if m.filename.endswith("/" + MANIFEST)]
    tops = [name for name in tops if name.count("/") == 1]
    if len(tops) != 1 or any(m.filename == MANIFEST for m in members):
        return ""
    folder = tops[0].removesuffix(MANIFEST)
    return folder if all(m.filename.startswith(folder) for m in members) else ""


def _data_start(file: io.RawIOBase, member: zipfile.ZipInfo) -> int:
    file.seek(member.header_offset)
    head = file.read(30)
    if len(head) != 30 or head[:4] != b"PK\x03\x04":
        raise BundleError(f"The zip entry of {member.filename[:80]!r} is damaged. Nothing is read.")
    name, extra = int.from_bytes(head[26:28], "little"), int.from_bytes(head[28:30], "little")
    return member.header_offset + 30 + name + extra


def _link(rel: str) -> BundleError:
    return BundleError(
        f"{rel[:120]!r} is a link. Bundles hold no links, since one can point at any file of this "
        "machine; it was not followed. Get a fresh copy of the bundle."
    )


def _absent(rel: str) -> BundleError:
    return BundleError(
        f"The listed file {rel[:120]!r} is not there, or cannot be read. The bundle is incomplete; "
        "`workbench verify` checks each of its files."
    )
