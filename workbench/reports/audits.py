"""Sections of the template ``checkpoint-audit``: which checkpoints may be trained on, and were."""

from __future__ import annotations

import datetime
import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import __version__
from workbench.charts.rows import Rows
from workbench.charts.words import MISSING, number
from workbench.errors import UsageError
from workbench.evidence.wording import byte_size, counted
from workbench.numerics import jsonio
from workbench.reports import blocks
from workbench.reports.blocks import Section

if TYPE_CHECKING:
    from workbench.checkpoints import Known

_BAD_SHOWN = 50
_CHANGES_SHOWN = 500


@dataclass
class Start:
    """How one run began.

    Attributes:
        run: Its name.
        step: Its first step in the ledger.
        parent: The checkpoint it names as its parent, or empty.
    """

    run: str
    step: int | None
    parent: str


@dataclass
class Audit:
    """A directory of checkpoints as its states file tells it.

    Attributes:
        name: Name of the folder; where it lies is nobody's business.
        known: Its checkpoints, oldest first.
        latest: Name of the newest committed one, or None.
        clean_through: The last step known to be clean, or None.
        digest: ``sha256:…`` of the states file, or empty without one.
        starts: What the ledgers say of how runs began; None where none were given.
        about: Title and author.
    """

    name: str
    known: list[Known]
    latest: str | None
    clean_through: int | None
    digest: str
    starts: list[Start] | None = None
    about: dict[str, str] = field(default_factory=dict)

    def states(self) -> Counter[str]:
        """How many checkpoints are in each state."""
        return Counter(one.state for one in self.known)


def load(directory: str, runs: str = "", title: str = "", author: str = "") -> Audit:
    """Read the states of a directory; no checkpoint is opened.

    Args:
        directory: The folder with the checkpoints.
        runs: A folder with ledgers, or empty.
        title: Title of the page.
        author: Who answers for it.

    Raises:
        UsageError: No folder was given, or there is none.
        CheckpointError: The states file or a ledger is damaged.
    """
    from workbench.checkpoints import Registry
    from workbench.checkpoints.layout import STATES_FILE
    from workbench.checkpoints.states import read_states

    if not directory:
        raise UsageError(
            "The template 'checkpoint-audit' was given no folder (directory=''), so there is "
            "nothing to look at. Give the folder that training saves its checkpoints to: "
            "workbench report --template checkpoint-audit -p directory CHECKPOINTS"
        )
    folder = Path(directory)
    registry = Registry(folder)
    latest = registry.latest()
    states = folder / STATES_FILE
    digest = hashlib.sha256(states.read_bytes()).hexdigest() if states.is_file() else ""
    return Audit(
        name=folder.resolve().name,
        known=registry.known(),
        latest=None if latest is None else latest.name,
        clean_through=read_states(folder).clean_through,
        digest=f"sha256:{digest}" if digest else "",
        starts=_starts(Path(runs)) if runs else None,
        about={"title": title, "author": author},
    )


def _starts(runs: Path) -> list[Start]:
    from workbench.checkpoints.ledgers import first_record

    found = []
    for path in sorted(runs.glob("*.ledger.jsonl")):
        record = first_record(path)
        if record is not None:
            step = record.get("step")
            parent = record.get("checkpoint_parent")
            run = str(record.get("run_id") or path.name.partition(".")[0])
            found.append(Start(run, step if isinstance(step, int) else None, str(parent or "")))
    return found


def first_screen(audit: Audit) -> Section:
    """What may be resumed from, and whether anything else was."""
    counts = audit.states()
    wrong = _wrongly_used(audit)
    headline, tone = _headline(audit, wrong)
    newest = audit.known[-1] if audit.known else None
    held = ", ".join(f"{number(counts[s])} {s}" for s in ("committed", "suspect", "quarantined"))
    limit = (
        "That a committed checkpoint is good: its scan was finite, and training after it stayed "
        "clean."
    )
    facts = [
        ("Checkpoints", f"{held}.", "checkpoints"),
        ("Newest", _newest(newest), "checkpoints"),
        ("Clean through", _clean(audit), "changes"),
        ("Re-entered", _reentered(audit, wrong), "training"),
        ("Not shown", limit, ""),
    ]
    own = audit.about.get("title") or f"Checkpoint audit of {audit.name}"
    aside = counted(len(audit.known), "checkpoint")
    shown = [blocks.title(own, aside, headline, tone), blocks.facts(facts), blocks.contents()]
    return Section("summary", shown, jsonio.dumps(_data(audit, wrong)))


def _headline(audit: Audit, wrong: list[str]) -> tuple[str, str]:
    if not audit.known:
        return "There are no checkpoints in this folder.", ""
    if wrong:
        listed = ", ".join(wrong[:3])
        return f"Training was resumed from what is not committed now: {listed}.", "bad"
    if audit.latest is None:
        return "No checkpoint is committed: none is known to be safe to resume from.", "bad"
    tone = "alert" if audit.known[-1].checkpoint.name != audit.latest else ""
    return f"Resume from {audit.latest}, the newest committed checkpoint.", tone


def _newest(newest: Known | None) -> str:
    if newest is None:
        return "None."
    return f"{newest.checkpoint.name} is {newest.state}: {newest.why}."


def _clean(audit: Audit) -> str:
    if audit.clean_through is None:
        return "No step is known to be clean; give the ledger to `workbench checkpoints scan`."
    return f"Step {number(audit.clean_through)} is the last known to be clean."


def _reentered(audit: Audit, wrong: list[str]) -> str:
    used = len(_uses(audit))
    if not used:
        return "No resume was recorded."
    said = f"{number(used)} resumes were recorded, " if used > 1 else "One resume was recorded, "
    if wrong:
        count = len(wrong)
        return f"{said}from {counted(count, 'checkpoint')} not committed now."
    return said + ("all from committed checkpoints." if used > 1 else "from a committed one.")


def _uses(audit: Audit) -> list[tuple[str, str, str, str]]:
    """``(checkpoint, by, when, source)`` of every recorded resume."""
    found = [
        (one.checkpoint.name, str(use.get("who", "")), _time(use.get("time")), "by an integration")
        for one in audit.known
        for use in one.entry.resumed
    ]
    for start in audit.starts or ():
        if start.parent:
            at = MISSING if start.step is None else f"step {number(start.step)}"
            found.append((Path(start.parent).name, f"run {start.run}", at, "its ledger says so"))
    return found


def _state_of(audit: Audit, name: str) -> str:
    found = {one.checkpoint.name: one.state for one in audit.known}
    return found.get(name, "not in this folder")


def _wrongly_used(audit: Audit) -> list[str]:
    names = dict.fromkeys(name for name, *_ in _uses(audit))
    return [name for name in names if _state_of(audit, name) in ("suspect", "quarantined")]


def checkpoints(audit: Audit) -> Section:
    """One row per checkpoint, newest first."""
    rows = tuple(
        (
            one.checkpoint.name,
            one.state,
            MISSING if one.entry.step is None else number(one.entry.step),
            *_scan(one.entry.scan),
            one.why,
        )
        for one in reversed(audit.known)
    )
    if not rows:
        return Section("checkpoints", [blocks.paragraph("None.")])
    headers = ("Checkpoint", "State", "Step", "Scan", "Read", "Why")
    caption = "Newest first. Only committed checkpoints are for resuming."
    return Section("checkpoints", [blocks.table(Rows(caption, headers, rows, numeric=(2, 4)))])


def _scan(scan: Mapping[str, Any] | None) -> tuple[str, str]:
    if scan is None:
        return "not scanned", MISSING
    size = byte_size(int(scan.get("bytes") or 0))
    if scan.get("error"):
        return "could not be read to its end", size
    tensors = counted(int(scan.get("tensors") or 0), "tensor")
    if scan.get("finite"):
        return f"finite, {tensors}", size
    return f"{number(int(scan.get('bad_total') or 0))} bad of {tensors}", size


def bad(audit: Audit) -> Section:
    """The tensors for which checkpoints were quarantined."""
    rows = []
    for one in audit.known:
        scan = one.entry.scan or {}
        if scan.get("error"):
            rows.append((one.checkpoint.name, MISSING, str(scan["error"])))
        for entry in scan.get("bad") or ():
            counts = entry.get("counts") or {}
            seen = ", ".join(
                f"{number(int(counts[key]))} {word}"
                for key, word in (("nan", "NaN"), ("pos_inf", "+Inf"), ("neg_inf", "−Inf"))
                if counts.get(key)
            )
            words = str(entry.get("why", "")).replace("_", " ")
            rows.append((one.checkpoint.name, str(entry.get("name")), seen or words))
    if not rows:
        return Section("bad", [blocks.paragraph("No scan found anything that is not finite.")])
    headers = ("Checkpoint", "Tensor", "Seen")
    caption = f"{number(min(len(rows), _BAD_SHOWN))} of {counted(len(rows), 'tensor')}."
    return Section("bad", [blocks.table(Rows(caption, headers, tuple(rows[:_BAD_SHOWN])))])


def training(audit: Audit) -> Section:
    """Every recorded resume, with the state of what was resumed from."""
    rows = tuple((*use, _state_of(audit, use[0])) for use in _uses(audit))
    if audit.starts is None:
        unknown = "Ledgers were not given (-p runs FOLDER), so runs that name a parent are missing."
    else:
        without = sum(not start.parent for start in audit.starts)
        unknown = (
            f"{number(without)} of {number(len(audit.starts))} ledgers name no parent "
            "(provenance checkpoint_parent): what those runs started from is not known here."
        )
    shown = [blocks.paragraph(unknown)]
    if rows:
        headers = ("Checkpoint", "By", "When", "How it is known", "State now")
        shown.insert(0, blocks.table(Rows("Recorded resumes.", headers, rows)))
    return Section("training", shown)


def changes(audit: Audit) -> Section:
    """Every change of state: when, who, why."""
    found = sorted(
        (
            (float(change.get("time") or 0.0), one.checkpoint.name, change)
            for one in audit.known
            for change in one.entry.history
        ),
        key=lambda row: (-row[0], row[1]),
    )
    if not found:
        return Section("changes", [blocks.paragraph("No state was ever changed.")])
    rows = tuple(
        (
            name,
            _time(when),
            _move(change),
            str(change.get("who", "")),
            str(change.get("why", "")),
        )
        for when, name, change in found[:_CHANGES_SHOWN]
    )
    headers = ("Checkpoint", "When", "State", "Who", "Why")
    caption = f"{number(len(rows))} of {counted(len(found), 'change')}, newest first."
    return Section("changes", [blocks.table(Rows(caption, headers, rows))])


def _move(change: Mapping[str, Any]) -> str:
    before, after = str(change.get("from", "")), str(change.get("to", ""))
    return after if before == after else f"{before} → {after}"


def check(audit: Audit) -> Section:
    """How a reader can check every claim."""
    rows = (
        ("Folder", audit.name),
        ("Digest of the states file", audit.digest or "there is none"),
        ("Versions", f"nonfinite-workbench {__version__}"),
        ("Author", audit.about.get("author") or "not named"),
    )
    commands = (
        "workbench checkpoints list CHECKPOINTS\n"
        "workbench checkpoints scan CHECKPOINTS --all\n"
        "workbench checkpoints latest CHECKPOINTS"
    )
    shown = [
        blocks.table(Rows("", ("Fact", "Value"), rows)),
        blocks.code(commands, "Reads every float again, and names what may be resumed from"),
    ]
    return Section("check", shown)


def _time(value: Any) -> str:
    if not isinstance(value, int | float) or value <= 0:
        return MISSING
    return f"{datetime.datetime.fromtimestamp(value, tz=datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


def _data(audit: Audit, wrong: list[str]) -> dict[str, Any]:
    return {
        "schema": "workbench.checkpoint-audit/1",
        "latest": audit.latest,
        "clean_through": audit.clean_through,
        "states_digest": audit.digest,
        "resumed_from_uncommitted": wrong,
        "checkpoints": [
            {
                "name": one.checkpoint.name,
                "state": one.state,
                "step": one.entry.step,
                "why": one.why,
                "resumed": len(one.entry.resumed),
            }
            for one in audit.known
        ],
    }
