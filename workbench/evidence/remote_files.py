"""Files of a store through fsspec: how many bytes they have, and ranges of them.

A web server says what it likes: bodies without an end, one byte a second, folders that list folders
that list folders. So answers of one are bounded here, and so are the addresses a listing may name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from workbench.errors import BundleError, CannotRunError, UsageError

_LARGEST_READ: Final = 64 << 20  # a zip's directory claims its own size; it is not believed
_LARGEST_LISTING: Final = 8 << 20
_ANSWER_S: Final = 120.0
_SILENCE_S: Final = 30.0
_WEB: Final = {"http", "https"}
_LINKS: Final = re.compile(r"<[aA] [^<>]{0,2000}>")


def read_range(files: Any, path: str, start: int, end: int) -> bytes:
    """Some bytes of a file.

    Raises:
        BundleError: More than any part of a bundle needs.
    """
    if end - start > _LARGEST_READ:
        raise BundleError(
            f"{path!r} asks for {end - start} bytes at once, more than any part of a bundle needs. "
            "It is damaged or made up; nothing of it was used."
        )
    if end <= start:
        return b""
    data: bytes = files.cat_file(path, start=start, end=end)
    if len(data) > end - start:  # a server that does not know ranges sends the whole file
        data = data[start:end]
    return data


def size_of(files: Any, path: str) -> int | None:
    """Bytes of a file; None where there is none."""
    try:
        info = files.info(path)
    except FileNotFoundError:
        return None
    size = info.get("size")
    return int(size) if info.get("type") == "file" and size is not None else None


def is_web(files: Any) -> bool:
    """Whether it is a web server."""
    known = files.protocol
    return bool(({known} if isinstance(known, str) else set(known)) & _WEB)


def lies_below(root: str, path: str) -> bool:
    """Whether an address that a store lists lies in what was asked for, and is one address."""
    inside = path.startswith(root.rstrip("/") + "/") or not root.strip("/")
    return inside and "::" not in path and ".." not in path.split("/")


def file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it.

    Raises:
        CannotRunError: fsspec, or what it needs for this kind of store, is not installed.
        UsageError: fsspec knows no such kind of store.
    """
    try:
        import fsspec

        bounds = {"client_kwargs": _client()} if url.partition("://")[0].lower() in _WEB else {}
        found: tuple[Any, str] = fsspec.core.url_to_fs(url, **bounds)
    except ImportError as error:
        raise CannotRunError(
            f"The store {url!r} cannot be read here ({error}), so nothing was looked at. Install "
            "what it needs: pip install 'nonfinite-workbench[remote]'; for s3:// add s3fs, for "
            "gs:// gcsfs, for az:// adlfs."
        ) from error
    except ValueError as error:
        raise UsageError(
            f"The URL {url!r} names a kind of store that fsspec does not know ({error}), so "
            "nothing was looked at. Give a folder, or a URL such as s3://bucket/incidents."
        ) from error
    return found


@cache
def _client() -> dict[str, Any]:
    """How requests to a web server are made: none takes memory or time without end."""
    import aiohttp

    class Bounded(aiohttp.ClientResponse):
        async def read(self) -> bytes:
            return await self._at_most(_LARGEST_READ)

        async def text(self, encoding: str | None = None, errors: str = "strict") -> str:
            del encoding, errors
            page = (await self._at_most(_LARGEST_LISTING)).decode("utf-8", "ignore")
            # fsspec looks for links with expressions that take for ever on text made for it
            return "\n".join(_LINKS.findall(" ".join(page.split())))

        async def _at_most(self, size: int) -> bytes:
            pieces, got = [], 0
            async for piece in self.content.iter_chunked(1 << 20):
                pieces.append(piece)
                got += len(piece)
                if got > size:
                    self.close()
                    raise aiohttp.ClientPayloadError(
                        f"the server sends more than {size} bytes; one that sends whole files "
                        "where a part is asked for cannot serve larger ones"
                    )
            return b"".join(pieces)

    timeout = aiohttp.ClientTimeout(_ANSWER_S, sock_connect=_SILENCE_S, sock_read=_SILENCE_S)
    return {"response_class": Bounded, "timeout": timeout}


@contextmanager
def answering(url: str) -> Iterator[None]:
    """What a store's library raises, as an error of ours; each library has its own classes."""
    try:
        yield
    except (BundleError, CannotRunError, UsageError):
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:300] or type(error).__name__
        raise CannotRunError(
            f"The store of {url!r} did not give what was asked for ({type(error).__name__}: "
            f"{said}), so it was not read. Check the address, the network and the credentials."
        ) from error
