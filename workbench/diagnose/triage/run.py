"""Triage of a store: list it, read every bundle, put ranks together, group, and say what is new."""

from __future__ import annotations

import csv
import datetime
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from workbench.diagnose.triage.grouping import groups
from workbench.diagnose.triage.incidents import add_spread, incidents
from workbench.diagnose.triage.ledgers import Part, merge
from workbench.diagnose.triage.reading import Row, failed, read_ledger, read_row
from workbench.diagnose.triage.selecting import is_since
from workbench.errors import UsageError
from workbench.evidence.remote import Spot, find_stored
from workbench.evidence.wording import clean

SCHEMA: Final = "workbench.triage/1"
_COLUMNS: Final = (
    "created", "group", "known", "kind", "run_id", "step", "stage", "tensor", "caught", "op",
    "module", "where", "cause", "fingerprint", "world", "ranks", "first_ranks", "findings", "url",
    "error",
)  # fmt: skip
_FORMULA: Final = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a spreadsheet takes for a formula, ASCII or full-width."""
_CELL: Final = 4096

Progress = Callable[[str], None]


@dataclass
class Triage:
    """What a store of bundles holds.

    Attributes:
        url: The store.
        incidents: Incidents, newest first.
        groups: Groups of the same fault, newest first.
        unreadable: Rows of bundles that could not be read, with ``error``.
        older: How many incidents were left out as older than asked for.
        notes: What was not looked at, and why.
    """

    url: str
    incidents: list[Row]
    groups: list[Row]
    unreadable: list[Row]
    older: int = 0
    notes: list[str] = field(default_factory=list)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Triage:
        """What ``to_data`` gave."""
        keys = ("incidents", "groups", "unreadable", "notes")
        lists: dict[str, Any] = {key: list(data[key]) for key in keys}
        return cls(url=data["url"], older=int(data["totals"]["older"]), **lists)

    @property
    def bundles(self) -> int:
        """Number of bundles read, those of all ranks."""
        return sum(len(one["bundles"]) + len(one["copies"]) for one in self.incidents)

    def to_data(self) -> dict[str, Any]:
        """As ``workbench.triage/1``."""
        return {
            "schema": SCHEMA,
            "url": self.url,
            "groups": self.groups,
            "incidents": self.incidents,
            "unreadable": self.unreadable,
            "totals": self.totals,
            "notes": self.notes,
        }

    @property
    def totals(self) -> dict[str, int]:
        """Counts of everything."""
        return {
            "bundles": self.bundles,
            "incidents": len(self.incidents),
            "groups": len(self.groups),
            "known": sum(one["known"] for one in self.incidents),
            "diagnosed": sum(one["findings"] in ("origin", "no origin") for one in self.incidents),
            "older": self.older,
            "unreadable": len(self.unreadable),
        }

    def to_csv(self) -> str:
        """One line an incident, and one for each bundle that could not be read."""
        out = io.StringIO()
        writer = csv.DictWriter(out, _COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        for incident in self.incidents:
            writer.writerow({key: _cell(value) for key, value in _flat(incident).items()})
        for row in self.unreadable:
            writer.writerow({"url": _cell(row["url"]), "error": _cell(row["error"])})
        return out.getvalue()


def run_triage(
    url: str,
    *,
    since: datetime.datetime | None = None,
    known: Iterable[str] = (),
    jobs: int = 1,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Triage:
    """Read a store of bundles and group the same fault across incidents.

    Of each bundle the manifest and the ledger are fetched, and findings where they lie beside it;
    of runs with several ranks also the ledgers of ranks that have no bundle. No code is run.

    Args:
        url: A folder, or an fsspec URL such as ``s3://bucket/incidents``.
        since: Only incidents as new as this.
        known: Fingerprints that are known already.
        jobs: Bundles read at a time.
        executor: Reads the bundles instead; it is not shut down.
        progress: Called with a sentence now and then.

    Raises:
        UsageError: No such folder or kind of store, or ``jobs`` below 1.
        CannotRunError: The store does not answer, or its library is missing.
    """
    if jobs < 1:
        raise UsageError(f"Triage was asked for jobs={jobs!r}, so it would read nothing; give 1.")
    say = progress or (lambda sentence: None)
    shelf = find_stored(url)
    say(f"{len(shelf.bundles):,} bundles in {url}")
    with _pool(executor, jobs) as pool:
        rows = list(_read(pool, shelf.bundles, say))
        unreadable = [row for row in rows if row["error"] is not None]
        found = incidents(row for row in rows if row["error"] is None)
        kept = [one for one in found if since is None or is_since(one["created"], since)]
        notes = shelf.notes + _add_ledgers(pool, kept, shelf.ledgers, say)
    names = frozenset(known)
    for one in kept:
        one["known"] = one["fingerprint"] in names
    unreadable.sort(key=lambda row: str(row["url"]))
    return Triage(url, kept, groups(kept), unreadable, len(found) - len(kept), notes)


# -- reading ------------------------------------------------------------------------------------


@contextmanager
def _pool(executor: Executor | None, jobs: int) -> Iterator[Executor]:
    if executor is not None:
        yield executor
        return
    with ThreadPoolExecutor(jobs) as own:  # waiting for a store, not computing
        yield own


def _read(pool: Executor, spots: Iterable[Spot], say: Progress) -> Iterator[Row]:
    waiting = {pool.submit(read_row, spot.url, spot.findings): spot for spot in spots}
    for count, future in enumerate(as_completed(waiting), start=1):
        yield _result(future, waiting[future])
        if count % 100 == 0 or count == len(waiting):
            say(f"{count:,} of {len(waiting):,} read")


def _result(future: Future[Row], spot: Spot) -> Row:
    try:
        return future.result()
    except Exception as error:  # noqa: BLE001 - a lost worker costs its own bundles, not the others
        return failed(spot, f"It was not read: its worker died ({type(error).__name__}: {error}).")


def _add_ledgers(
    pool: Executor, found: list[Row], ledgers: Mapping[str, int], say: Progress
) -> list[str]:
    """What the ledgers of all ranks say about each incident of several ranks."""
    notes: list[str] = []
    wanted: dict[tuple[str, str], list[Row]] = {}
    for one in found:
        if one["world"] > 1:
            folder = one["bundles"][0].rstrip("/").rpartition("/")[0]
            wanted.setdefault((folder, one["run_id"]), []).append(one)
    for (folder, run_id), members in wanted.items():
        start = f"{folder}/{run_id}."
        urls = [url for url in ledgers if url.startswith(start)]
        if not urls:
            continue
        say(f"{len(urls):,} ledgers of the ranks of {run_id}")
        waiting = {pool.submit(read_ledger, url): url for url in urls}
        parts = []
        for future in as_completed(waiting):
            part = _part(future)
            if isinstance(part, Part):
                parts.append(part)
            else:
                notes.append(f"The ledger {waiting[future]!r} was not used. {part}")
        merged = merge(parts)
        for one in members:
            add_spread(one, merged)
    return notes


def _part(future: Future[Part | str]) -> Part | str:
    try:
        return future.result()
    except Exception as error:  # noqa: BLE001 - a lost worker costs its own ledgers
        return f"Its worker died ({type(error).__name__}: {error})."


# -- the file for a spreadsheet -----------------------------------------------------------------


def _flat(incident: Row) -> Row:
    caught, origin = incident["caught"] or {}, incident["origin"] or {}
    row = {key: incident.get(key) for key in _COLUMNS}
    row |= {key: origin.get(key) for key in ("op", "module", "where", "cause")}
    row |= {"caught": caught.get("stage"), "tensor": caught.get("tensor")}
    row |= {key: " ".join(map(str, incident[key])) for key in ("ranks", "first_ranks")}
    return row


def _cell(value: Any) -> Any:
    r"""A text of one line that a spreadsheet shows and does not take for a formula.

    A file name may be any bytes: those that are no text are written as ``\udcff``.
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, str):
        return value
    text = clean(value.encode("utf-8", "backslashreplace").decode(), _CELL)
    return f"'{text}" if text.startswith(_FORMULA) else text
