"""Sections of the template ``fleet-triage``: many incidents of many runs, grouped by fault."""

from __future__ import annotations

import datetime
import os
import shlex
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.charts.rows import Rows
from workbench.charts.words import MISSING, number
from workbench.evidence.remote import is_local
from workbench.evidence.wording import counted, joined
from workbench.numerics import jsonio
from workbench.reports import blocks
from workbench.reports.blocks import Block, Section
from workbench.reports.telling import tell

if TYPE_CHECKING:
    from workbench.diagnose.triage.run import Triage

MOST_ROWS = 500
_HANDED = "WORKBENCH_TRIAGE"
"""Environment variable with the file of a triage that was made already."""
_MOST_COUNTED = 40


@dataclass
class Fleet:
    """A store as a report sees it.

    Attributes:
        found: The triage.
        name: The store: its URL, of a folder its name alone.
        asked: What was left out on request, in words, or empty.
        about: Title and author.
    """

    found: Triage
    name: str
    asked: str = ""
    about: dict[str, str] = field(default_factory=dict)


def load(
    store: str,
    since: str = "",
    known: str = "",
    jobs: int = 8,
    title: str = "",
    author: str = "",
) -> Fleet:
    """Read manifests, ledgers and findings of a store.

    Args:
        store: A folder, or an fsspec URL.
        since: A date, or how long ago; empty for all.
        known: Fingerprints with commas between, or a file of them.
        jobs: Bundles read at a time.
        title: Title of the page.
        author: Who answers for it.

    Raises:
        UsageError: No such folder, or ``since`` or ``known`` that is none.
        CannotRunError: The store does not answer.
    """
    found = _handed(store, since, known) or _read(store, since, known, jobs)
    name = Path(store).resolve().name if is_local(store) else store
    asked = f"Only incidents since {since}." if since else ""
    return Fleet(found, name, asked, {"title": title, "author": author})


def _read(store: str, since: str, known: str, jobs: int) -> Triage:
    from workbench.diagnose.triage.run import run_triage
    from workbench.diagnose.triage.selecting import parse_known, parse_since

    now = datetime.datetime.now(tz=datetime.UTC)
    return run_triage(
        store or os.curdir,
        since=parse_since(since, now) if since else None,
        known=parse_known(known) if known else (),
        jobs=jobs,
        progress=tell,
    )


@contextmanager
def hand_on(found: Triage, store: str, since: str, known: str) -> Iterator[None]:
    """Give a triage that was just made to a report of the same store, which then reads nothing.

    Args:
        found: The triage.
        store: As for ``load``.
        since: As for ``load``.
        known: As for ``load``.
    """
    content = {"asked": [store, since, known], "triage": found.to_data()}
    with tempfile.TemporaryDirectory(prefix="workbench-triage-") as folder:
        path = Path(folder) / "triage.json"
        path.write_text(jsonio.dumps(content), encoding="utf-8")
        os.environ[_HANDED] = str(path)
        try:
            yield
        finally:
            del os.environ[_HANDED]


def _handed(store: str, since: str, known: str) -> Triage | None:
    """What the process that started this report read of the store, if it did."""
    path = os.environ.get(_HANDED)
    if path is None:
        return None
    from workbench.diagnose.triage.run import Triage

    content = jsonio.loads(Path(path).read_bytes())
    if content["asked"] != [store, since, known]:
        return None
    return Triage.from_data(content["triage"])


def first_screen(fleet: Fleet) -> Section:
    """What the store holds, in sentences, and the largest groups."""
    found = fleet.found
    totals = found.totals
    text = f"{counted(totals['incidents'], 'incident')} in {counted(totals['groups'], 'group')}"
    unknown = [group for group in found.groups if not group["known"]]
    if totals["known"]:
        text += f", {number(len(unknown))} of them without a known fingerprint"
    largest = max(
        found.groups, key=lambda group: (group["count"], group["last_seen"]), default=None
    )
    newest = found.groups[0] if found.groups else None
    facts = [
        ("Store", f"{fleet.name}: {counted(totals['bundles'], 'bundle')}. {fleet.asked}", ""),
        ("Newest", "" if newest is None else _said(newest, newest["last_seen"][:10]), "groups"),
        ("Largest", "" if largest is None else _said(largest, _incidents(largest)), "groups"),
        ("Diagnosed", f"{number(totals['diagnosed'])} of {number(totals['incidents'])}.", "groups"),
        ("Left out", _left_out(totals), "not-read"),
    ]
    title = fleet.about["title"] or f"Fleet triage of {fleet.name}"
    dates = sorted(one["created"][:10] for one in found.incidents)
    when = f"{dates[0]} to {dates[-1]}" if dates else ""
    tone = "bad" if unknown else ""
    shown = [
        blocks.title(title, when, f"{text}.", tone),
        blocks.facts([fact for fact in facts if fact[1]]),
        blocks.contents(),
    ]
    return Section("summary", shown, jsonio.dumps(found.to_data()))


def groups(fleet: Fleet) -> Section:
    """One row per group, and for each why it is one."""
    found = fleet.found.groups
    if not found:
        return Section("groups", [blocks.paragraph("No incident was found.")])
    rows = tuple(
        (
            group["id"],
            group["what"],
            number(group["count"]),
            _stage(group["stage"]),
            group["last_seen"][:10],
            joined(group["fingerprints"], 3),
            "known" if group["known"] else "new",
        )
        for group in found[:MOST_ROWS]
    )
    headers = ("Group", "What", "Incidents", "Stage", "Last seen", "Fingerprints", "Known")
    shown: list[Block] = [
        blocks.table(Rows("Newest first.", headers, rows, numeric=(2,))),
        blocks.heading("Why these are groups"),
    ]
    why = tuple((g["id"], f"{g['why']}{_perhaps(g)}") for g in found[:MOST_ROWS])
    caption = (
        "A diagnosis compares op, module and cause of the first origin. Without one, only where "
        "it was caught is compared, and different faults can be caught at the same place."
    )
    shown.append(blocks.table(Rows(caption, ("Group", "Why"), why)))
    return Section("groups", [*shown, *_more(len(found))])


def counts(fleet: Fleet) -> Section:
    """How many incidents of each kind, at each stage, in each module."""
    incidents = fleet.found.incidents
    stages = [_stage(_group_of(fleet, one)["stage"]) for one in incidents]
    modules = [_group_of(fleet, one)["module"] for one in incidents]
    causes = [str((one["origin"] or {}).get("cause") or "not known") for one in incidents]
    tallies = (
        ("Kind", (one["kind"] for one in incidents)),
        ("Stage", stages),
        ("Module", modules),
        ("Cause", (cause.replace("_", " ") for cause in causes)),
    )
    rows = tuple(
        (name, value, number(count))
        for name, values in tallies
        for value, count in Counter(values).most_common(_MOST_COUNTED)
    )
    caption = "Stage, module and cause of the origin; the stage where caught without a diagnosis."
    table = blocks.table(Rows(caption, ("What", "Value", "Incidents"), rows, numeric=(2,)))
    return Section("counts", [table])


def steps(fleet: Fleet) -> Section:
    """When in training each group happened."""
    rows = tuple(
        (
            group["id"],
            number(len(group["runs"])),
            _range(group["steps"]),
            joined([number(step) for step in group["steps"]], 6),
            _repeated(group),
        )
        for group in fleet.found.groups[:MOST_ROWS]
    )
    caption = "Training steps of the incidents of each group."
    headers = ("Group", "Runs", "From, to", "Steps", "What repeats")
    return Section("steps", [blocks.table(Rows(caption, headers, rows, numeric=(1,)))])


def ranks(fleet: Fleet) -> Section:
    """Of incidents with several ranks, which was first and how it spread."""
    many = [one for one in fleet.found.incidents if one["world"] > 1]
    if not many:
        return Section("ranks", [blocks.paragraph("Every incident is of a run with one process.")])
    rows = tuple(
        (
            one["group"],
            f"{one['run_id']}, step {number(one['step'])}",
            number(one["world"]),
            joined([number(rank) for rank in one["first_ranks"]], 6),
            one["spread"]["sentence"] if one["spread"] else f"{_first(one['why_one'])}.",
        )
        for one in many[:MOST_ROWS]
    )
    caption = "Ordered by step and stage, never by clocks. The ranks of one incident count once."
    headers = ("Group", "Incident", "Ranks", "First bad", "How it spread")
    table = blocks.table(Rows(caption, headers, rows, numeric=(2,)))
    return Section("ranks", [table, *_more(len(many)), *_suspects(many)])


def incidents(fleet: Fleet) -> Section:
    """Every incident, newest first."""
    found = fleet.found.incidents
    rows = tuple(
        (
            one["created"][:16].replace("T", " "),
            one["group"],
            one["run_id"],
            number(one["step"]),
            _caught(one),
            one["fingerprint"],
            Path(one["url"]).name,
        )
        for one in found[:MOST_ROWS]
    )
    headers = ("Created", "Group", "Run", "Step", "Caught", "Fingerprint", "Bundle")
    table = blocks.table(Rows("Newest first.", headers, rows, numeric=(3,)), folded=len(rows) > 20)
    return Section("incidents", [table, *_more(len(found))])


def unreadable(fleet: Fleet) -> Section:
    """Bundles that could not be read, each with its reason, and what else was left out."""
    found = fleet.found.unreadable
    shown: list[Block] = [blocks.paragraph(note, "muted") for note in fleet.found.notes]
    if found:
        rows = tuple((row["name"], row["error"]) for row in found[:MOST_ROWS])
        shown.append(blocks.table(Rows("Nothing of these is used.", ("Bundle", "Why"), rows)))
        shown += _more(len(found))
    return Section("not-read", shown or [blocks.paragraph("Every bundle of the store was read.")])


def check(fleet: Fleet) -> Section:
    """How a reader can check every claim."""
    where = shlex.quote(fleet.name)
    commands = (
        f"workbench triage {where} --json\nworkbench verify BUNDLE\nworkbench diagnose BUNDLE"
    )
    limits = [
        "Only manifests, ledgers and findings were read: nothing was replayed, no code was run.",
        "A group by origin rests on the diagnoses beside the bundles, made by whoever made them.",
        "Tensor and pipeline parallel ranks exchange values inside of forward, before reduction.",
    ]
    author = fleet.about["author"]
    shown = [blocks.bullets(limits), blocks.code(commands, "The same groups, and one incident")]
    if author:
        shown.append(blocks.paragraph(f"Author: {author}."))
    return Section("check", shown)


# -- words --------------------------------------------------------------------------------------


def _incidents(group: dict[str, Any]) -> str:
    return counted(group["count"], "incident")


def _said(group: dict[str, Any], aside: str) -> str:
    return f"{group['id']}: {group['what']}, {aside}."


def _left_out(totals: dict[str, int]) -> str:
    parts = []
    if totals["older"]:
        parts.append(f"{number(totals['older'])} older")
    if totals["unreadable"]:
        parts.append(f"{number(totals['unreadable'])} that could not be read")
    return f"{joined(parts)}." if parts else ""


def _perhaps(group: dict[str, Any]) -> str:
    if not group["perhaps"]:
        return ""
    return f" {joined(group['perhaps'])} was caught at the same place; a diagnosis would tell."


def _stage(stage: str) -> str:
    return stage.replace("_", " ")


def _first(text: str) -> str:
    return text[:1].upper() + text[1:] if text else "One rank left a bundle"


def _caught(one: dict[str, Any]) -> str:
    caught = one["caught"]
    return MISSING if caught is None else f"{_stage(caught['stage'])}: {caught['tensor']}"


def _group_of(fleet: Fleet, incident: dict[str, Any]) -> dict[str, Any]:
    return next(group for group in fleet.found.groups if group["id"] == incident["group"])


def _range(found: Sequence[int]) -> str:
    if found[0] == found[-1]:
        return number(found[0])
    return f"{number(found[0])} to {number(found[-1])}"


def _repeated(group: dict[str, Any]) -> str:
    """A step that several runs failed at points to data or schedule, and is said."""
    if len(group["runs"]) > 1 and len(group["steps"]) == 1:
        return "every run at the same step"
    if len(group["runs"]) == 1 and group["count"] > 1:
        return "one run, several times"
    return MISSING


def _suspects(many: Sequence[dict[str, Any]]) -> list[Block]:
    """Ranks that were first in more than one incident of a run."""
    first = Counter((one["run_id"], rank) for one in many for rank in one["first_ranks"])
    said = [
        f"Rank {number(rank)} of {run} was first in {counted(count, 'incident')}."
        for (run, rank), count in first.most_common(20)
        if count > 1
    ]
    return [blocks.bullets(said)] if said else []


def _more(count: int) -> list[Block]:
    if count <= MOST_ROWS:
        return []
    text = f"{number(count - MOST_ROWS)} more are in the data of this page and in --csv."
    return [blocks.paragraph(text, "muted")]
