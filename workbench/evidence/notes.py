"""Notes: a view or a claim that somebody pinned with a sentence, kept beside the bundle.

``<bundle>.findings/notes.json`` is written by the panel and read by the reports.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from workbench.errors import BundleError, CannotRunError
from workbench.evidence.schema import strict_json
from workbench.numerics import jsonio

if TYPE_CHECKING:
    from workbench.evidence.reader import Bundle

SCHEMA: Final = "workbench.notes/1"
NAME: Final = "notes.json"
MAX_BYTES: Final = 4 << 20
MAX_NOTES: Final = 1000
LONGEST: Final = 2000


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """One pinned view or claim.

    Attributes:
        id: Random, unique among the notes of a bundle.
        time: When it was pinned: ISO 8601, UTC.
        view: What was on screen, in words, for example ``"Ranges, loss"``.
        claim: What the panel said there, word for word; empty when only the view is pinned.
        sentence: What the user wrote.
        run: The run on screen: ``Recorded``, ``Original``, ``A`` …, with its conditions.
    """

    id: str
    time: str
    view: str
    claim: str
    sentence: str
    run: str


def new_note(*, view: str, claim: str = "", sentence: str = "", run: str = "") -> Note:
    """A note of now, with a new id; overlong texts are cut."""
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return Note(
        id=secrets.token_hex(6),
        time=now,
        view=view[:LONGEST],
        claim=claim[:LONGEST],
        sentence=sentence[:LONGEST],
        run=run[:LONGEST],
    )


def read_notes(bundle: Bundle) -> tuple[Note, ...]:
    """The notes beside a bundle, oldest first; those that were packed with it where none are.

    Args:
        bundle: The opened bundle.

    Raises:
        BundleError: The file is damaged, or is no file of notes.
    """
    path = bundle.findings_dir / NAME
    data = _bytes(bundle, path)
    return () if data is None else decode(data, str(path))


def decode(data: bytes, name: str) -> tuple[Note, ...]:
    """The notes of a file's bytes.

    Args:
        data: Strict JSON.
        name: What the file is called in an error.

    Raises:
        BundleError: It is not what ``write_notes`` writes.
    """
    content = strict_json(data, NAME, name)
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        found = content.get("schema") if isinstance(content, dict) else type(content).__name__
        raise BundleError(
            f"{name!r} is not a file of notes of this version: its schema is {str(found)[:80]!r} "
            f"where {SCHEMA!r} is read. No note from it is shown. The evidence is not touched by "
            "this; move the file away to pin new notes."
        )
    rows = content.get("notes")
    if not isinstance(rows, list) or len(rows) > MAX_NOTES:
        raise BundleError(
            f"{name!r} has no list of at most {MAX_NOTES:,} notes, so none is shown. The evidence "
            "is not touched by this; move the file away to pin new notes."
        )
    return tuple(_note(row, name) for row in rows)


def write_notes(bundle: Bundle, notes: Iterable[Note]) -> Path:
    """Write the notes beside a bundle, in one move; the bundle itself is never changed.

    Args:
        bundle: The opened bundle.
        notes: All of them; the file is replaced.

    Returns:
        The file.

    Raises:
        CannotRunError: Nothing can be written there.
    """
    kept = list(notes)[-MAX_NOTES:]
    target = bundle.findings_dir / NAME
    text = jsonio.dumps({"schema": SCHEMA, "notes": [msgspec.to_builtins(n) for n in kept]})
    passing = target.with_name(f".{NAME}.{secrets.token_hex(4)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        passing.write_text(text + "\n", encoding="utf-8", newline="\n")
        passing.replace(target)
    except OSError as error:
        raise CannotRunError(
            f"The notes were not saved: nothing can be written at {str(target)!r} "
            f"({type(error).__name__}). They are lost when this process ends. Copy the bundle to "
            "a directory that you may write in and open it there, or copy the notes as text."
        ) from error
    return target


def _bytes(bundle: Bundle, path: Path) -> bytes | None:
    """At most ``MAX_BYTES`` of the file beside the bundle, else of the one packed with it."""
    try:
        if path.is_file():  # a named pipe would never end
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        elif (packed := f"findings/{NAME}") in bundle.packed_findings():
            data = bundle.read_packed_findings(packed)
        else:
            return None
    except OSError as error:
        raise BundleError(
            f"The notes at {str(path)!r} cannot be read ({type(error).__name__}), so none is "
            "shown. See who may read the file; the evidence is not touched by this."
        ) from error
    if len(data) > MAX_BYTES:
        raise BundleError(
            f"{str(path)!r} is larger than {MAX_BYTES:,} bytes, and no file of notes is, so none "
            "is shown. Move the file away to pin new notes."
        )
    return data


def _note(row: Any, name: str) -> Note:
    try:
        note = msgspec.convert(row, Note)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise BundleError(
            f"{name!r} holds a note that cannot be read ({error}), so none is shown. Move the file "
            "away to pin new notes."
        ) from error
    return note
