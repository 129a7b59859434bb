"""Files of a bundle that come into their place together.

A slow disk is slow by the call rather than by the byte: a network share takes a tenth of a second
for each name made, each fsync, each rename. So the files of one part are written and synced several
at a time, out of sight, and then moved with as few renames as their folders allow.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from workbench.evidence.files import Buffer, at_once, sync_directory, write_file
from workbench.evidence.schema import FileEntry

_WAITING: Final = 64 << 20
"""Bytes that wait in memory to be written with others."""


class Stage:
    """Files on their way into a folder.

    Args:
        folder: Where they are written; made with the first.
        target: Where they belong; the same folder where nobody looks at it yet.

    Attributes:
        sizes: Bytes of each file, by name.
        bytes: The same of all of them; counted along, since a part may have thousands of files.
        name_bytes: Characters of their names, likewise.
        written: What was written of them, by name.
    """

    def __init__(self, folder: Path, target: Path) -> None:
        self.sizes: dict[str, int] = {}
        self.bytes = self.name_bytes = self._waiting_bytes = 0
        self.written: dict[str, FileEntry] = {}
        self._folder = folder
        self._target = target
        self._hidden = folder != target
        self._waiting: dict[str, tuple[list[Buffer], Any]] = {}

    def add(self, rel: str, buffers: list[Buffer], owner: Any = None) -> None:
        """Add a file; it is written at once where much waits already.

        Args:
            rel: Its name.
            buffers: Its bytes, which must not change until ``write``.
            owner: What the memory of the buffers belongs to.

        Raises:
            OSError: The disk does not take it.
        """
        self._waiting[rel] = (buffers, owner)
        size = self.sizes[rel] = sum(map(len, buffers))
        self.bytes += size
        self.name_bytes += len(rel)
        self._waiting_bytes += size
        if self._waiting_bytes >= _WAITING:
            self.write()

    def write(self) -> None:
        """Write what waits.

        Raises:
            OSError: The disk does not take it; nothing half written stays.
        """
        if self._hidden:
            self._folder.mkdir(exist_ok=True)  # never its parent: a removed bundle stays removed
        for folder in {(self._folder / rel).parent for rel in self._waiting}:
            folder.mkdir(parents=True, exist_ok=True)
        waiting, self._waiting, self._waiting_bytes = self._waiting, {}, 0
        at_once(partial(self._one, rel, buffers) for rel, (buffers, _) in waiting.items())

    def _one(self, rel: str, buffers: list[Buffer]) -> None:
        path = self._folder / rel
        try:
            # what nobody sees yet is synced in whole before it gets its name
            self.written[rel] = write_file(path, buffers, sync=self._hidden)
        except BaseException:
            path.unlink(missing_ok=True)  # a full disk must not keep half a file
            raise

    def forget(self, rels: Iterable[str]) -> None:
        """Take files back, and folders that are empty then."""
        gone = [rel for rel in rels if rel in self.sizes]
        for rel in gone:
            size = self.sizes.pop(rel)
            self.bytes -= size
            self.name_bytes -= len(rel)
            if self._waiting.pop(rel, None) is not None:
                self._waiting_bytes -= size
            if self.written.pop(rel, None) is not None:
                (self._folder / rel).unlink(missing_ok=True)
        folders = {self._folder / parent for rel in gone for parent in Path(rel).parents[:-1]}
        for folder in [*sorted(folders, reverse=True), *([self._folder] if self._hidden else [])]:
            with suppress(OSError):  # not made, or not empty
                folder.rmdir()

    def move(self) -> None:
        """Put everything in its place; a folder that is new there in one rename.

        Raises:
            OSError: The disk does not take it; what was moved is taken back.
        """
        if not self._hidden or not self._folder.is_dir():
            return
        moves = list(_moves(self._folder, self._target))
        new = [source for source, _ in moves if source.is_dir()]
        at_once(partial(sync_directory, one) for top in new for one in (top, *_folders(top)))
        done: list[Path] = []
        try:
            for source, there in moves:
                source.rename(there)
                done.append(there)
        except OSError:
            for there in done:
                shutil.rmtree(there) if there.is_dir() else there.unlink()
            raise
        at_once(partial(sync_directory, one) for one in {there.parent for _, there in moves})
        shutil.rmtree(self._folder, ignore_errors=True)  # the folders that were there already


def _moves(source: Path, target: Path) -> Iterator[tuple[Path, Path]]:
    for one in sorted(source.iterdir()):
        there = target / one.name
        if one.is_dir() and there.is_dir():
            yield from _moves(one, there)
        else:
            yield one, there


def _folders(top: Path) -> list[Path]:
    return [path for path in top.rglob("*") if path.is_dir()]
