"""Bundles in an object store or behind a web server: listed, and read by ranges, through fsspec.

What is on this machine is read by ``store``; a bundle elsewhere goes through the same checks. Only
what is asked for is fetched: of a directory single files, of a zip its central directory and the
members by their place in it.
"""

from __future__ import annotations

import io
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from workbench.errors import BundleError, UsageError
from workbench.evidence.reader import Bundle
from workbench.evidence.remote_files import (
    answering,
    file_system,
    is_web,
    lies_below,
    read_range,
    size_of,
)
from workbench.evidence.store import Store, Window, ZipStore

_DIRECTORY: Final = ".bundle"
_ZIP: Final = ".bundle.zip"
_FINDINGS: Final = ".findings"
_LEDGERS: Final = (".ledger.jsonl", ".ledger.1.jsonl")
"""A run's ledger, and the part of it from before the file began anew."""
_MOST: Final = 100_000
_DEEPEST: Final = 12
_MOST_FOLDERS: Final = 10_000


@dataclass(frozen=True)
class Spot:
    """Where one bundle lies.

    Attributes:
        url: Its path or URL.
        findings: Whether a folder of results lies beside it.
    """

    url: str
    findings: bool = False

    @property
    def name(self) -> str:
        """The last part of its URL."""
        return self.url.rstrip("/").rpartition("/")[2]

    @property
    def folder(self) -> str:
        """What it lies in."""
        return self.url.rstrip("/").rpartition("/")[0]


@dataclass
class Shelf:
    """What a store holds.

    Attributes:
        url: The store.
        bundles: Where its bundles lie, by name.
        ledgers: Ledgers of whole runs beside them: URL and size in bytes.
        notes: What was not looked at, and why.
    """

    url: str
    bundles: list[Spot] = field(default_factory=list)
    ledgers: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def is_local(url: str) -> bool:
    """Whether it names a path of this machine."""
    return "://" not in url and "::" not in url


def find_stored(url: str) -> Shelf:
    """List the bundles and ledgers of a store; nothing of them is read.

    Args:
        url: A folder, or an fsspec URL such as ``s3://bucket/incidents``.

    Raises:
        UsageError: No such folder, or a kind of store fsspec does not know.
        CannotRunError: The store's library is not installed, or the store does not answer.
    """
    url = url.removeprefix("file://")  # so that no link of this machine is followed
    _refuse_one_bundle(url)
    shelf = _find_local(Path(url)) if is_local(url) else _find_remote(url)
    shelf.bundles.sort(key=lambda spot: spot.url)
    return shelf


def open_spot(spot: Spot) -> Bundle:
    """Open a bundle of a store; its manifest is fetched, and of a zip the directory.

    Raises:
        BundleError: Damaged, hostile or newer, or not to be read there.
        CannotRunError: The store does not answer.
    """
    if is_local(spot.url):
        return Bundle(spot.url)
    files, path = file_system(spot.url)
    with answering(spot.url):
        store: Store = (
            _RemoteZip(files, path) if path.endswith(_ZIP) else _RemoteDirectory(files, path)
        )
        return Bundle(spot.name, store)


def read_findings(spot: Spot, bundle: Bundle, limit: int) -> bytes | None:
    """The ``findings.json`` beside a bundle, or packed with it; None where there is none.

    Raises:
        BundleError: It is larger than ``limit`` bytes.
    """
    packed = "findings/findings.json"
    if spot.findings:
        beside = spot.url.rstrip("/").removesuffix(".zip") + f"{_FINDINGS}/findings.json"
        data = read_stored(beside, limit)
        if data is not None:
            return data
    return bundle.read_packed_findings(packed) if packed in bundle.packed_findings() else None


def read_stored(url: str, limit: int, *, tail: bool = False) -> bytes | None:
    """A whole small file of a store; None when it is not there.

    Args:
        url: Its path or URL.
        limit: Most bytes.
        tail: Take the last ``limit`` bytes of a larger file instead of refusing it.

    Raises:
        BundleError: It is larger.
        CannotRunError: The store does not answer.
    """
    files, path = file_system(url)
    with answering(url):
        size = size_of(files, path)
        if size is None:
            return None
        if size > limit and not tail:
            raise BundleError(
                f"{url!r} has {size} bytes; no such file needs more than {limit}. It was not read."
            )
        return read_range(files, path, max(0, size - limit), size)


# -- finding ------------------------------------------------------------------------------------


def _refuse_one_bundle(url: str) -> None:
    name = url.rstrip("/").rpartition("/")[2]
    if not name.endswith((_DIRECTORY, _ZIP)):
        return
    folder = url.rstrip("/").rpartition("/")[0] or "."
    raise UsageError(
        f"{url!r} is one bundle, and this puts many together, so nothing was read. Give the folder "
        f"that it lies in, {folder!r}, or look at the one with: workbench diagnose {name}"
    )


def _find_local(folder: Path) -> Shelf:
    if not folder.is_dir():
        raise UsageError(
            f"There is no folder {str(folder)!r}, so no bundle was looked for. Name the folder "
            "that the bundles lie in, or a URL such as s3://bucket/incidents."
        )
    shelf = Shelf(str(folder))
    for where, folders, names in os.walk(folder):
        here = Path(where)
        found = [name for name in folders if name.endswith(_DIRECTORY)]
        found += [name for name in names if name.endswith(_ZIP)]
        for name in found:
            if not name.startswith("."):
                beside = name.removesuffix(".zip") + _FINDINGS in folders
                shelf.bundles.append(Spot(str(here / name), beside))
        for name in names:
            path = here / name
            if name.endswith(_LEDGERS) and not path.is_symlink():
                shelf.ledgers[str(path)] = path.stat().st_size
        folders[:] = [name for name in folders if not _is_closed(name)]
    return shelf


def _is_closed(name: str) -> bool:
    """Whether a folder is not searched: hidden, a bundle, or results of one."""
    return name.startswith(".") or name.endswith((_DIRECTORY, _FINDINGS))


def _find_remote(url: str) -> Shelf:
    files, root = file_system(url)
    shelf = Shelf(url)
    with answering(url):
        _is_there(files, root, url)
        walk = files.walk(root, topdown=True, detail=True)
        for number, (folder, directories, names) in enumerate(walk, 1):
            if folder.rstrip("/").count("/") - root.rstrip("/").count("/") > _DEEPEST:
                directories.clear()
                shelf.notes.append(f"Folders below {folder!r} were not searched: too deep.")
                continue
            _leave_out_strangers(shelf, root, directories, names)
            _take(files, shelf, directories, names)
            if len(shelf.bundles) >= _MOST:
                del shelf.bundles[_MOST:]
                shelf.notes.append(f"Only the first {_MOST:,} bundles found were looked at.")
                break
            if number == _MOST_FOLDERS:
                shelf.notes.append(f"Only the first {number:,} folders were searched.")
                break
    return shelf


def _is_there(files: Any, root: str, url: str) -> None:
    try:
        files.info(root)
    except FileNotFoundError as error:
        if isinstance(error.__cause__, OSError):  # a web server that cannot be reached
            raise error.__cause__ from error
        raise UsageError(
            f"There is nothing at {url!r}, so no bundle was looked for. Name the folder that the "
            "bundles lie in, as the store itself lists it."
        ) from error


def _leave_out_strangers(shelf: Shelf, root: str, *listed: dict[str, Any]) -> None:
    """Forget what a listing names outside of the store, or as a chain of addresses."""
    strange: list[str] = []
    for found in listed:
        other = [name for name, i in found.items() if not lies_below(root, str(i["name"]))]
        strange += [str(found.pop(name)["name"]) for name in other]
    if strange:
        shelf.notes.append(
            f"{strange[0][:200]!r} is listed, which does not lie in the store; not looked at"
            + (f", nor were {len(strange) - 1} more." if strange[1:] else ".")
        )


def _take(files: Any, shelf: Shelf, directories: dict[str, Any], names: dict[str, Any]) -> None:
    """Bundles of one folder; no folder inside of a bundle is walked."""
    found = [info for name, info in directories.items() if name.endswith(_DIRECTORY)]
    found += [info for name, info in names.items() if name.endswith(_ZIP)]
    for info in found:
        path = str(info["name"]).rstrip("/")
        name = path.rpartition("/")[2]
        if not name.startswith("."):
            beside = name.removesuffix(".zip") + _FINDINGS
            shelf.bundles.append(Spot(files.unstrip_protocol(path), beside in directories))
    for name, info in names.items():
        if name.endswith(_LEDGERS) and not name.startswith("."):
            shelf.ledgers[files.unstrip_protocol(str(info["name"]))] = int(info.get("size") or 0)
    for name in list(directories):
        if _is_closed(name):
            del directories[name]


# -- reading ------------------------------------------------------------------------------------


class _RemoteDirectory:
    """A bundle as a folder of a store. Stores have no links."""

    def __init__(self, files: Any, root: str) -> None:
        self._files = files
        self._root = root.rstrip("/")

    def size(self, rel: str) -> int | None:
        """See ``Store``."""
        return size_of(self._files, f"{self._root}/{rel}")

    def open(self, rel: str, size: int) -> io.RawIOBase:
        """See ``Store``."""
        return _Ranges(self._files, f"{self._root}/{rel}", size)

    def read_small(self, rel: str, limit: int) -> bytes:
        """See ``Store``."""
        size = self.size(rel)
        where = self._root.rpartition("/")[2]
        if size is None:
            raise BundleError(
                f"{where!r} has no {rel}, so it is no bundle, or one whose writing or upload was "
                "cut off before its first manifest."
            )
        if size > limit:
            raise BundleError(
                f"The {rel} of {where!r} has {size} bytes; no bundle needs more than {limit}. It "
                "was not read."
            )
        return read_range(self._files, f"{self._root}/{rel}", 0, size)

    def names(self, prefix: str) -> list[str]:
        """See ``Store``."""
        return []


class _RemoteZip(ZipStore):
    """A packed bundle in a store."""

    def __init__(self, files: Any, path: str) -> None:
        self._files = files
        info = files.info(path)
        if is_web(files) and not info.get("partial"):
            raise BundleError(
                f"{path!r} is a packed bundle on a web server that does not serve parts of files, "
                "so all of it would have to be fetched to read its manifest. Unpack it there, or "
                "use a server that answers ranges."
            )
        self._size = int(info["size"])
        super().__init__(path)

    def _file(self) -> io.RawIOBase:
        return _Ranges(self._files, str(self._path), self._size)


class _Ranges(Window):
    """A file of a store, of which exactly the bytes asked for are fetched."""

    def __init__(self, files: Any, path: str, size: int) -> None:
        super().__init__(size)
        self._files, self._path = files, path

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if self._place(offset, whence) < 0:  # how zipfile learns that a file is too short
            raise OSError("a place before the beginning of the file")
        return super().seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        end = min(self.size, self._position + len(view))
        if end <= self._position:
            return 0
        data = read_range(self._files, self._path, self._position, end)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def read(self, size: int = -1) -> bytes:
        end = self.size if size < 0 else min(self.size, self._position + size)
        if end <= self._position:
            return b""
        data = read_range(self._files, self._path, self._position, end)
        self._position += len(data)
        return data
