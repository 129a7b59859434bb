"""Writing a bundle, light files before heavy ones.

Whenever the process is killed, what lies under the final name is a true bundle: the manifest lists
exactly what is there, and is replaced atomically each time a file has reached its place.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from torch import Tensor

from workbench.errors import BundleError, UsageError
from workbench.evidence.packing import pack_tensors
from workbench.evidence.pytree import flatten
from workbench.evidence.safetensors_file import encode
from workbench.evidence.schema import (
    MANIFEST,
    FileEntry,
    Manifest,
    check_name,
    encode_manifest,
    fingerprint,
)
from workbench.numerics import jsonio

PACK_KEY: Final = "workbench.pack"

_INLINE_DIGEST: Final = 4 << 20  # below this a thread costs more than it saves
_PIECE: Final = 8 << 20
_BUFFERS_A_CALL: Final = 512  # POSIX allows 1024 buffers a writev
_SUFFIX: Final = ".bundle"

Buffer = memoryview | bytes


class BundleWriter:
    """Writes one bundle.

    Files added before ``publish`` go to a hidden temporary directory, those added after it to
    their place, each followed by a new manifest. ``seal`` ends it; ``abort`` removes what is not
    published.

    Attributes:
        manifest: The manifest as it stands.
        path: The bundle's directory: temporary before ``publish``, final after it.
    """

    def __init__(self, directory: str | os.PathLike[str], name: str) -> None:
        """Start a bundle.

        Args:
            directory: Where bundles are kept; made if missing.
            name: The directory name wanted, with or without ``.bundle``. When it is taken, ``-2``,
                ``-3``, … is added: no bundle is ever overwritten.

        Raises:
            UsageError: A name outside the fixed alphabet.
        """
        stem = name.removesuffix(_SUFFIX)
        try:
            check_name(stem)
        except BundleError as error:
            raise UsageError(str(error)) from error
        if "/" in stem:
            raise UsageError(f"The bundle name {name!r} has a folder in it. Give the folder apart.")
        self._directory = Path(directory)
        self._stem = stem
        self._directory.mkdir(parents=True, exist_ok=True)
        self.path = self._directory / f".{stem}{_SUFFIX}.{secrets.token_hex(4)}"
        self.path.mkdir()
        self._published = False
        self.manifest = Manifest(
            created_by=_created_by(),
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            id=secrets.token_hex(8),
            run_id="",
        )

    @property
    def bytes_written(self) -> int:
        """Bytes of all files so far, without the manifest."""
        return sum(entry.size for entry in self.manifest.files.values())

    def add_json(self, rel: str, obj: Any) -> None:
        """Add a strict JSON file."""
        self._add(rel, [(jsonio.dumps(obj, indent=1) + "\n").encode("ascii")])

    def add_text(self, rel: str, text: str) -> None:
        """Add a text file, UTF-8."""
        self._add(rel, [text.encode("utf-8", "backslashreplace")])

    def add_bytes(self, rel: str, data: bytes) -> None:
        """Add a file of given bytes."""
        self._add(rel, [data])

    def add_lines(self, rel: str, records: Iterable[Mapping[str, Any]]) -> None:
        """Add a file of JSON lines."""
        self._add(rel, [jsonio.dump_lines(list(records)).encode("ascii")])

    def add_tensors(self, rel: str, tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
        """Add a safetensors file with strides, aliasing, layouts and ``requires_grad`` kept.

        Args:
            rel: File name.
            tensors: By name; they must not change until the call returns.

        Returns:
            Per tensor, what the file says beyond the plain values; empty for plain tensors.
        """
        packed = pack_tensors(tensors)
        metadata = {PACK_KEY: jsonio.dumps(packed.specs)} if packed.specs else None
        self._add(rel, encode(packed.stored, metadata))
        return packed.specs

    def add_pytree(self, stem: str, tree: Any) -> Any:
        """Add ``<stem>.json`` and, when it holds tensors, ``<stem>.safetensors``.

        Returns:
            The tree's spec, in which what could not be recorded stands as ``{"missing": …}``.
        """
        spec, tensors = flatten(tree)
        self.add_json(f"{stem}.json", spec)
        if tensors:
            self.add_tensors(f"{stem}.safetensors", tensors)
        return spec

    def drop(self, rel: str, reason: str) -> None:
        """Record that a file was left out, and why."""
        self.manifest.dropped[rel] = reason

    def update(self, **fields: Any) -> None:
        """Set fields of the manifest; on disk with the next manifest written.

        Raises:
            UsageError: A field the manifest does not have, or one the writer owns.
        """
        for key, value in fields.items():
            if key not in Manifest.__struct_fields__ or key in {"format", "files", "sealed", "id"}:
                raise UsageError(f"The manifest has no field {key!r} that can be set.")
            setattr(self.manifest, key, value)

    def publish(self, **fields: Any) -> Path:
        """Give the bundle its final name, with a manifest that lists what is there.

        Args:
            **fields: Fields of the manifest: ``run_id``, ``kind``, ``step``, ``first_bad``, …

        Returns:
            The final path.
        """
        self.update(**fields)
        if not self.manifest.fingerprint:
            self.manifest.fingerprint = fingerprint(self.manifest.kind, self.manifest.first_bad)
        self._write_manifest()
        if not self._published:
            _sync_tree(self.path)
            self.path = self._claim_name()
            _sync_directory(self._directory)
            self._published = True
        return self.path

    def seal(self) -> Path:
        """Mark the bundle complete. It is never modified after this.

        Returns:
            The bundle's path.
        """
        self.manifest.sealed = True
        return self.publish()

    def abort(self) -> None:
        """Remove what was not published. A published bundle stays, unsealed and true."""
        if not self._published:
            shutil.rmtree(self.path, ignore_errors=True)
            return
        for part in self.path.rglob(".*.part"):
            part.unlink(missing_ok=True)

    def _add(self, rel: str, buffers: list[Buffer]) -> None:
        self._check_new(rel)
        target = self.path / rel
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        try:
            entry = write_file(part, buffers, sync=self._published)
        except BaseException:
            part.unlink(missing_ok=True)  # a full disk must not keep half a file
            raise
        part.rename(target)
        self.manifest.files[rel] = entry
        if self._published:
            _sync_directory(target.parent)
            self._write_manifest()

    def _check_new(self, rel: str) -> None:
        try:
            check_name(rel)
        except BundleError as error:
            raise UsageError(str(error)) from error
        if self.manifest.sealed or rel in self.manifest.files:
            why = "the bundle is sealed" if self.manifest.sealed else "it was added before"
            raise UsageError(
                f"{rel!r} cannot be added to {str(self.path)!r}: {why}. Evidence is written once; "
                "results go to the sibling .findings directory."
            )

    def _write_manifest(self) -> None:
        part = self.path / f".{MANIFEST}.part"
        write_file(part, [encode_manifest(self.manifest)], sync=True)
        part.replace(self.path / MANIFEST)
        if self._published:
            _sync_directory(self.path)

    def _claim_name(self) -> Path:
        number = 1
        while True:
            ending = "" if number == 1 else f"-{number}"
            final = self._directory / f"{self._stem}{ending}{_SUFFIX}"
            number += 1
            if os.path.lexists(final):
                continue
            try:
                # Renaming onto a directory with files fails: two writers cannot share a name.
                self.path.rename(final)
            except OSError:
                if not os.path.lexists(final):
                    raise
                continue
            return final


def write_file(path: Path, buffers: list[Buffer], *, sync: bool) -> FileEntry:
    """Write a new file and digest it while it is written.

    Args:
        path: Must not exist.
        buffers: The bytes, in order.
        sync: Whether to fsync before returning.
    """
    size = sum(len(buffer) for buffer in buffers)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        if size <= _INLINE_DIGEST:
            digest = hashlib.sha256()
            for buffer in buffers:
                digest.update(buffer)
            for start in range(0, len(buffers), _BUFFERS_A_CALL):
                _write_all(descriptor, buffers[start : start + _BUFFERS_A_CALL])
            hexadecimal = digest.hexdigest()
        else:
            hexadecimal = _write_large(descriptor, buffers)
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return FileEntry(size, hexadecimal)


def _write_large(descriptor: int, buffers: list[Buffer]) -> str:
    # Both hashlib and write release the interpreter lock, so digesting costs a core, not time.
    digest = hashlib.sha256()
    queue: SimpleQueue[Buffer | None] = SimpleQueue()

    def consume() -> None:
        while (piece := queue.get()) is not None:
            digest.update(piece)

    thread = threading.Thread(target=consume, name="workbench-sha256")
    thread.start()
    try:
        for buffer in buffers:
            view = memoryview(buffer)
            for start in range(0, len(view), _PIECE):
                piece = view[start : start + _PIECE]
                queue.put(piece)
                _write_all(descriptor, [piece])
    finally:
        queue.put(None)
        thread.join()
    return digest.hexdigest()


def _write_all(descriptor: int, buffers: list[Buffer]) -> None:
    written = os.writev(descriptor, buffers)
    for buffer in buffers:
        if written >= len(buffer):
            written -= len(buffer)
            continue
        rest = memoryview(buffer)[written:]  # a short write: rare, but allowed
        written = 0
        while rest:
            rest = rest[os.write(descriptor, rest) :]


def _sync_tree(root: Path) -> None:
    for folder, _, files in os.walk(root):
        for name in files:
            descriptor = os.open(os.path.join(folder, name), os.O_RDONLY)  # noqa: PTH118 - os.walk
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        _sync_directory(Path(folder))


def _sync_directory(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # some file systems and platforms do not open directories
        return
    try:
        os.fsync(descriptor)
    except OSError:
        return
    finally:
        os.close(descriptor)


def _created_by() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"nonfinite-workbench {version('nonfinite-workbench')}"
    except PackageNotFoundError:
        return "nonfinite-workbench"
