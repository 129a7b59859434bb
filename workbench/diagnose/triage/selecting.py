"""Which incidents are asked for: since when, and which fingerprints are known already."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Final

from workbench.errors import UsageError

_AGO: Final = re.compile(r"([0-9]{1,5})\s*([hdw])")
_UNITS: Final = {"h": "hours", "d": "days", "w": "weeks"}
_FINGERPRINT: Final = re.compile(r"NF-[0-9a-f]{6}")
_MOST_BYTES: Final = 4 << 20


def parse_since(text: str, now: datetime.datetime) -> datetime.datetime:
    """A moment: a date, a date and time (UTC without a zone), or ``7d``, ``12h``, ``2w`` ago.

    Raises:
        UsageError: It is none of these.
    """
    ago = _AGO.fullmatch(text.strip())
    if ago is not None:
        return now - datetime.timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        moment = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(
            f"The moment {text[:60]!r} is neither a date nor a time ago, so nothing was read. "
            "Write 2026-11-30, 2026-11-30T06:00, or a number of hours, days or weeks: 12h, 7d, 2w."
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)


def is_since(created: str, since: datetime.datetime) -> bool:
    """Whether a bundle is as new; one whose date cannot be read is kept."""
    try:
        moment = datetime.datetime.fromisoformat(created)
    except ValueError:
        return True
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
    return moment >= since


def parse_known(text: str) -> frozenset[str]:
    """Fingerprints: a list with commas, or a file with one a line and ``#`` before remarks.

    Raises:
        UsageError: No such file, or a line that is no fingerprint.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(_FINGERPRINT.fullmatch(word) for word in words):
        words = _from_file(text)
    for word in words:
        if not _FINGERPRINT.fullmatch(word):
            raise UsageError(
                f"{word[:60]!r} is no fingerprint, so nothing was read. A fingerprint is NF- and "
                "six of 0-9 and a-f, as `workbench list` shows it; give a file with one a line, "
                "or several with commas between them."
            )
    return frozenset(words)


def _from_file(text: str) -> list[str]:
    path = Path(text)
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(
                f"The file {text!r} is too large for a list of fingerprints, so it was not read. "
                "Give a text file with one fingerprint a line."
            )
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        if text.strip().startswith("NF-"):
            return [word.strip() for word in text.split(",") if word.strip()]
        raise UsageError(
            f"There is no file {text[:200]!r} of known fingerprints, so nothing was read. Give a "
            "file with one a line, or several with commas between them: NF-1a2b3c,NF-4d5e6f"
        ) from None
    return [word for line in lines if (word := line.partition("#")[0].strip())]
