"""Writing files so that they are there, digested while their bytes go out."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from workbench.evidence.schema import FileEntry

_INLINE_DIGEST: Final = 1 << 20  # below this a thread costs more than it saves
_PIECE: Final = 1 << 20  # what was just written is still in the cache when it is digested
_BUFFERS_A_CALL: Final = 512  # POSIX allows 1024 buffers a writev
_AT_ONCE: Final = 16

Buffer = memoryview | bytes


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
            for batch in _batches(buffers):
                _write_all(descriptor, batch)
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
    queue: SimpleQueue[list[Buffer] | None] = SimpleQueue()

    def consume() -> None:
        while (batch := queue.get()) is not None:
            for buffer in batch:
                digest.update(buffer)

    thread = threading.Thread(target=consume, name="workbench-sha256")
    thread.start()
    try:
        for batch in _batches(buffers):
            queue.put(batch)
            _write_all(descriptor, batch)
    finally:
        queue.put(None)
        thread.join()
    return digest.hexdigest()


def _batches(buffers: list[Buffer]) -> Iterator[list[Buffer]]:
    """The same bytes in lists of bounded size: small buffers together, large ones in pieces."""
    batch: list[Buffer] = []
    size = 0
    for buffer in buffers:
        view = memoryview(buffer)
        for start in range(0, len(view), _PIECE):
            piece = view[start : start + _PIECE] if len(view) > _PIECE else view
            batch.append(piece)
            size += len(piece)
            if size >= _PIECE or len(batch) == _BUFFERS_A_CALL:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


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


def at_once(jobs: Iterable[Callable[[], object]]) -> None:
    """Do jobs that wait for the disk, several at a time.

    Raises:
        Exception: The first of a job; no further one is begun after it.
    """
    left = list(jobs)[::-1]
    failed: list[BaseException] = []

    def work() -> None:
        while left and not failed:
            try:
                job = left.pop()
            except IndexError:  # another thread was faster
                return
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - raised again by who waits for it
                failed.append(error)

    begun: list[threading.Thread] = []
    try:
        for _ in left[1:_AT_ONCE]:  # this thread is one of them
            thread = threading.Thread(target=work, name="workbench-files")
            try:
                thread.start()
            except RuntimeError:  # the interpreter is ending, or there are too many threads
                break
            begun.append(thread)
        work()
    finally:
        left.clear()  # there is something left where this thread was interrupted
        for thread in begun:
            thread.join()
    if failed:
        raise failed[0]


def sync_tree(root: Path) -> None:
    """Fsync every file and directory below and including ``root``."""
    jobs: list[Callable[[], object]] = []
    for folder, _, files in os.walk(root):
        jobs += [partial(_sync, os.path.join(folder, name)) for name in files]  # noqa: PTH118 - os.walk
        jobs.append(partial(sync_directory, Path(folder)))
    at_once(jobs)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Fsync a directory, so that the names in it are there."""
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
