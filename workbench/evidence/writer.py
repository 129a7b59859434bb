"""Writing a bundle, light files before heavy ones.

Whenever the process is killed, what lies under the final name is a true bundle: the manifest lists
exactly what is there, and is replaced atomically each time a file has reached its place.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from workbench.errors import BundleError, UsageError
from workbench.evidence.files import Buffer, sync_directory, sync_tree, write_file
from workbench.evidence.leftovers import begin, let_go, unmark
from workbench.evidence.packed_names import PACK_KEY
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
from workbench.evidence.staging import Stage
from workbench.numerics import jsonio

_STAGE: Final = ".parts"
"""Where files are written that come into a published bundle."""
_SUFFIX: Final = ".bundle"
_ENTRY: Final = 160
"""Bytes of one file in the manifest beside its name, rounded up."""
_STILL_TO_SAY: Final = 8 * 2**10
"""Bytes kept free for what the manifest says at the end: what is complete, what was left out."""


class NoRoomError(Exception):
    """A file would grow the bundle beyond what it may take; nothing of it was written."""


class BundleWriter:
    """Writes one bundle.

    Files added before ``publish`` go to a hidden temporary directory, those added after it to
    their place, each followed by a new manifest. ``seal`` ends it; ``abort`` removes what is not
    published.

    Attributes:
        manifest: The manifest as it stands.
        path: The bundle's directory: temporary before ``publish``, final after it.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        name: str,
        room: Callable[[int], bool] | None = None,
    ) -> None:
        """Start a bundle.

        Args:
            directory: Where bundles are kept; made if missing.
            name: The directory name wanted, with or without ``.bundle``. When it is taken, ``-2``,
                ``-3``, … is added: no bundle is ever overwritten.
            room: Whether the bundle may have so many bytes in all, asked before each file is
                written and before the bundle has its name; a no raises ``NoRoomError``.

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
        # Locked until it has its name: a marked folder that nobody holds is a leftover
        self.path, self._lock = begin(self._directory, stem)
        self._published = False
        self._room = room
        self._manifest_size = 0
        self._stage: Stage | None = None
        self.manifest = Manifest(
            created_by=_created_by(),
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            id=secrets.token_hex(8),
            run_id="",
        )

    @property
    def published(self) -> bool:
        """Whether the bundle has its final name."""
        return self._published

    @property
    def bytes_written(self) -> int:
        """Bytes of all files so far, without the manifest."""
        staged = 0 if self._stage is None else self._stage.bytes
        return staged + sum(entry.size for entry in self.manifest.files.values())

    @property
    def total_bytes(self) -> int:
        """Bytes of all files so far, with the manifest as it was last written."""
        return self.bytes_written + self._manifest_size

    @contextmanager
    def together(self) -> Iterator[Stage]:
        """Files added meanwhile come into their place at the end: all of them, or none.

        One manifest then lists them all, and a slow disk is waited for a few times rather than a
        few times a file. Tensors must not change until the end. Within another ``together`` the
        files wait for the end of that one, and those added here are taken back at an exception.

        Raises:
            OSError: The disk does not take them.
        """
        outermost, before = self._stage is None, set(self._stage.sizes if self._stage else ())
        stage = self._stage or Stage(
            self.path / _STAGE if self._published else self.path, self.path
        )
        self._stage = stage
        try:
            yield stage
            if outermost and stage.sizes:
                self._settle(stage)
        except BaseException:
            stage.forget(set(stage.sizes) - before)
            raise
        finally:
            if outermost:
                self._stage = None

    def _settle(self, stage: Stage) -> None:
        self._check_there()
        stage.write()
        stage.move()
        self._stage = None  # what it holds is listed from here on
        self.manifest.files |= {rel: stage.written[rel] for rel in stage.sizes}
        if self._published:
            self._write_manifest()

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
        self._add(rel, encode(packed.stored, metadata), packed)
        return packed.specs

    def add_pytree(self, stem: str, tree: Any) -> Any:
        """Add ``<stem>.json`` and, when it holds tensors, ``<stem>.safetensors``.

        Returns:
            The tree's spec, in which what could not be recorded stands as ``{"missing": …}``.
        """
        spec, tensors = flatten(tree)
        with self.together():
            self.add_json(f"{stem}.json", spec)
            if tensors:
                self.add_tensors(f"{stem}.safetensors", tensors)
        return spec

    def drop(self, rel: str, reason: str) -> None:
        """Record that a file was left out, and why."""
        self.manifest.dropped[rel] = reason

    def fits(self) -> bool:
        """Whether the manifest as it stands now fits beside the files."""
        size = self.bytes_written + len(encode_manifest(self.manifest))
        return self._room is None or self._room(size)

    def update(self, **fields: Any) -> None:
        """Set fields of the manifest; on disk with the next manifest written.

        Raises:
            UsageError: A field the manifest does not have, or one the writer owns.
        """
        for key, value in fields.items():
            if key not in Manifest.__struct_fields__ or key in {"format", "files", "sealed", "id"}:
                raise UsageError(
                    f"The manifest has no field {key!r} that can be set, so nothing was changed. "
                    "`Manifest` lists its fields; format, files, sealed and id are the writer's."
                )
            setattr(self.manifest, key, value)

    def publish(self, **fields: Any) -> Path:
        """Give the bundle its final name, with a manifest that lists what is there.

        Args:
            **fields: Fields of the manifest: ``run_id``, ``kind``, ``step``, ``first_bad``, …

        Returns:
            The final path.

        Raises:
            NoRoomError: The manifest does not fit beside the files.
            BundleError: The folder, or a file that was added, is gone or has another size.
        """
        self.update(**fields)
        self._check_there(self.manifest.files)
        if not self.manifest.fingerprint:
            self.manifest.fingerprint = fingerprint(self.manifest.kind, self.manifest.first_bad)
        if not self._published and self._room is not None:
            self._ask(len(encode_manifest(self.manifest)))
        self._write_manifest()
        if not self._published:
            sync_tree(self.path)
            unmark(self.path)
            self.path = self._claim_name()
            sync_directory(self._directory)
            self._published = True
            self._unlock()
        return self.path

    def seal(self) -> Path:
        """Mark the bundle complete. It is never modified after this.

        Returns:
            The bundle's path.

        Raises:
            NoRoomError: As of ``publish``.
            BundleError: As of ``publish``; it stays unsealed.
        """
        self._check_there(self.manifest.files)
        self.manifest.sealed = True
        return self.publish()

    def abort(self) -> None:
        """Remove what was not published. A published bundle stays, unsealed and true."""
        if not self._published:
            shutil.rmtree(self.path, ignore_errors=True)
            self._unlock()
            return
        shutil.rmtree(self.path / _STAGE, ignore_errors=True)
        (self.path / f".{MANIFEST}.part").unlink(missing_ok=True)

    def _unlock(self) -> None:
        lock, self._lock = self._lock, None
        let_go(lock)

    def _add(self, rel: str, buffers: list[Buffer], owner: Any = None) -> None:
        self._check_new(rel)
        self._check_there()
        with self.together() as stage:
            listed = stage.name_bytes + len(rel) + _ENTRY * (len(stage.sizes) + 1)
            self._ask(self._manifest_size + listed + sum(map(len, buffers)))
            stage.add(rel, buffers, owner)

    def _ask(self, more: int) -> None:
        if self._room is not None and not self._room(self.bytes_written + more + _STILL_TO_SAY):
            raise NoRoomError

    def _check_new(self, rel: str) -> None:
        try:
            check_name(rel)
        except BundleError as error:
            raise UsageError(str(error)) from error
        staged = self._stage.sizes if self._stage else ()
        if self.manifest.sealed or rel in self.manifest.files or rel in staged:
            why = "the bundle is sealed" if self.manifest.sealed else "it was added before"
            raise UsageError(
                f"{rel!r} cannot be added to {str(self.path)!r}: {why}. Evidence is written once; "
                "results go to the sibling .findings directory."
            )

    def _check_there(self, files: Mapping[str, FileEntry] | None = None) -> None:
        """Whether the folder is there, with files as long as they were written.

        A folder that somebody removed is never made again: what is missing in it would be listed.
        """
        gone = None if self.path.is_dir() else str(self.path)
        for rel, entry in ({} if gone else files or {}).items():
            try:
                there = (self.path / rel).lstat().st_size == entry.size
            except OSError:
                there = False
            if not there:
                gone = str(self.path / rel)
                break
        if gone is not None:
            raise BundleError(
                f"{gone!r} was removed or changed by somebody else while the bundle "
                f"{self._stem + _SUFFIX!r} was written, so its evidence is not whole and it was "
                "not published or sealed. Find out what cleans that directory."
            )

    def _write_manifest(self) -> None:
        part, data = self.path / f".{MANIFEST}.part", encode_manifest(self.manifest)
        # what has no name yet is synced in whole before it gets one
        self._manifest_size = write_file(part, [data], sync=self._published).size
        part.replace(self.path / MANIFEST)
        if self._published:
            sync_directory(self.path)

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


@cache
def _created_by() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"nonfinite-workbench {version('nonfinite-workbench')}"
    except PackageNotFoundError:
        return "nonfinite-workbench"
