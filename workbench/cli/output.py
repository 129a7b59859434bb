"""Where the command line writes: facts on stdout, everything else on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

_out: list[TextIO] = []


@contextmanager
def facts_only() -> Iterator[None]:
    """Keep stdout for ``say`` and ``emit``; whatever else is printed goes to stderr.

    Replayed training code, notebooks and native libraries print as they like. The file descriptor
    is redirected too, since native code and child processes print there.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    _out.append(os.fdopen(os.dup(kept), "w", encoding="utf-8", errors="backslashreplace"))
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        try:
            _out.pop().close()
            sys.stdout.flush()
        finally:
            os.dup2(kept, 1)
            os.close(kept)


def say(text: str = "") -> None:
    """Write one line of facts to stdout."""
    stream = _out[-1] if _out else sys.stdout
    stream.write(printable(text) + "\n")
    stream.flush()


def note(text: str) -> None:
    """Write one line of progress or remarks to stderr."""
    sys.stderr.write(printable(text) + "\n")
    sys.stderr.flush()


def emit(data: Any) -> None:
    """Write strict JSON to stdout."""
    from workbench.numerics import jsonio

    say(jsonio.dumps(data, indent=2))


def printable(text: str) -> str:
    """Escape control characters: names come from bundles and may try to drive the terminal."""
    return "".join(
        c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )


def table(rows: Iterable[Sequence[str]], indent: str = "") -> list[str]:
    """Align rows of text in columns; the last column is left as it is."""
    kept = [[printable(cell).replace("\n", " ") for cell in row] for row in rows]
    if not kept:
        return []
    widths = [max(map(len, column)) for column in zip(*kept, strict=True)]
    return [
        (indent + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True))).rstrip()
        for row in kept
    ]
