"""The facts a report is made from: the bundle, its findings and its trace."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.charts.arrays import TableLike
from workbench.diagnose.answers import Answer, five_answers
from workbench.errors import BundleError, WorkbenchError
from workbench.evidence.notes import Note, read_notes
from workbench.evidence.wording import counted
from workbench.numerics import jsonio
from workbench.reports.telling import tell


@dataclass
class Incident:
    """One incident as a report sees it.

    Attributes:
        name: File name of the bundle; its folder is nobody's business.
        digest: ``sha256:…`` of the bundle's manifest.
        fingerprint: ``NF-xxxxxx``.
        kind: ``nonfinite``, ``alert`` or ``captured``.
        first_bad: What was caught, or None.
        conditions: The original conditions.
        completeness: Per recovery goal, ``complete`` or what is missing.
        ledger: L1 records.
        environment: What the run was recorded on.
        manifest: Other facts of the manifest: run, step, rank, world, created, sealed, notes.
        findings: ``workbench.findings/1``, or None when there are none.
        findings_text: The same as JSON text.
        summary: The five lines: headline, Why, Sure?, Reach, Resume.
        answers: The five answers, each with its evidence and command.
        origin_note: Where the findings come from, in one sentence.
        layers: Ranges of the traced replay, or None.
        events: Ops of the traced replay, or None.
        show_samples: Whether sample identifiers may be shown.
        here: Environment of this report run.
        differences: What differs between the two environments.
        about: Title, author and other things said about the report.
        damaged: What is wrong with files of the bundle, one sentence each.
        files: How the files were checked, in one sentence.
        notes: What was pinned in the workbench, oldest first.
        notes_problem: Why notes that are there cannot be shown, or empty.
    """

    name: str
    digest: str
    fingerprint: str = ""
    kind: str = "nonfinite"
    first_bad: dict[str, Any] | None = None
    conditions: dict[str, Any] = field(default_factory=dict)
    completeness: dict[str, str] = field(default_factory=dict)
    ledger: list[dict[str, Any]] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    findings: dict[str, Any] | None = None
    findings_text: str = ""
    summary: list[str] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    origin_note: str = ""
    layers: TableLike | None = None
    events: TableLike | None = None
    show_samples: bool = False
    here: dict[str, Any] = field(default_factory=dict)
    differences: list[dict[str, Any]] = field(default_factory=list)
    about: dict[str, str] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)
    files: str = ""
    notes: tuple[Note, ...] = ()
    notes_problem: str = ""

    @property
    def step(self) -> int:
        """Training step of the incident."""
        return int((self.first_bad or {}).get("step", self.manifest.get("step", 0)))

    @property
    def rank(self) -> int:
        """Rank that wrote the bundle."""
        return int((self.first_bad or {}).get("rank", self.manifest.get("rank", 0)))

    @property
    def run_id(self) -> str:
        """The run."""
        return str((self.first_bad or {}).get("run_id") or self.manifest.get("run_id") or "run")

    @property
    def record(self) -> dict[str, Any]:
        """The ledger record of the incident's step, empty when the window does not hold it."""
        mine = [r for r in self.ledger if r.get("step") == self.step]
        of_rank = [r for r in mine if r.get("rank") in (None, self.rank)]
        return (of_rank or mine or [{}])[-1]


def load_incident(
    bundle: str | Path,
    step: str = "",
    trust: str = "",
    show_samples: bool = False,
    **about: str,
) -> Incident:
    """Read a bundle and find, or make, its findings.

    Saved findings are used when they were made from exactly this bundle. Else the step is
    diagnosed here, which replays it when its code is given; without code the record alone
    answers what it can.

    Args:
        bundle: Path of the bundle.
        step: ``package.module:Name`` or ``file.py:Name``; empty when there is no code to run.
        trust: ``import``, ``source`` or empty.
        show_samples: Whether sample identifiers may be shown.
        **about: Title, author and the like, for the page.

    Raises:
        BundleError: The bundle is damaged, hostile or newer.
    """
    from workbench.evidence import (
        environment,
        environment_differences,
        open_bundle,
        summary_facts,
        summary_lines,
    )

    opened = open_bundle(bundle)
    manifest = opened.manifest
    first_bad = opened.first_bad
    incident = Incident(
        name=opened.path.name,
        digest=opened.digest,
        fingerprint=opened.fingerprint,
        kind=opened.kind,
        first_bad=None if first_bad is None else first_bad.as_dict(),
        conditions=opened.conditions.as_dict(),
        completeness=dict(opened.completeness),
        show_samples=show_samples,
        here=environment(),
        about=dict(about),
        manifest={
            name: getattr(manifest, name)
            for name in ("run_id", "step", "rank", "world", "created", "sealed", "notes", "dropped")
        },
    )
    incident.manifest["step_reference"] = manifest.step_reference.reference
    incident.manifest["step_kind"] = manifest.step_reference.kind
    incident.summary = summary_lines(summary_facts(opened))
    incident.ledger = _optional(opened.ledger, [])
    incident.environment = _optional(opened.environment, {})
    if incident.environment:
        incident.differences = environment_differences(incident.environment, incident.here)
    _check_files(incident, opened)
    _add_findings(incident, opened, step or None, trust or None)
    incident.answers = five_answers(opened, incident.findings)
    try:
        incident.notes = read_notes(opened)
    except BundleError as error:
        incident.notes_problem = without_folder(str(error), opened)
    return incident


_MOST_BYTES = 4 << 30
_WRONG = {
    "missing": "is missing",
    "size": "has another size than the manifest says",
    "digest": "does not match its digest",
}


def _check_files(incident: Incident, opened: Any) -> None:
    """Read every file once against its digest; of a very large bundle only presence and size."""
    whole = sum(entry.size for entry in opened.manifest.files.values()) <= _MOST_BYTES
    tell("Checking the bundle's files")
    found = opened.verify("digest" if whole else "open")
    incident.damaged = [
        f"{check.rel} {_WRONG.get(check.status, check.status)}. Nothing from it is shown."
        for check in found
        if check.status != "ok"
    ]
    how = "match their digests" if whole else "have the right size; digests were not read"
    good = len(found) - len(incident.damaged)
    incident.files = f"Of {counted(len(found), 'file')}, {good:,} {how}."


def _optional(read: Any, default: Any) -> Any:
    """A part of the evidence that may be missing or damaged without taking the rest along."""
    try:
        return read()
    except BundleError:
        return default


def _add_findings(incident: Incident, opened: Any, step: str | None, trust: str | None) -> None:
    from workbench.diagnose import diagnose
    from workbench.evidence.made import made_sentence

    saved = saved_findings(opened)
    asked = step is not None or trust is not None
    if saved is not None and not (asked and not _replayed(saved[0])):
        found, incident.layers, incident.events, where = saved
        label = made_sentence(opened)
        made_on = f" They were {label}." if label else ""
        source = found.get("bundle", {}).get("redacted_from")
        made_from = "the bundle this is a redacted copy of" if source else "exactly this bundle"
        incident.origin_note = f"Findings saved {where}, made from {made_from}.{made_on}"
    else:
        try:
            made = diagnose(opened, step=step, trust=trust, progress=tell)
        except WorkbenchError as error:
            why = without_folder(str(error), opened)
            incident.origin_note = f"Diagnosis did not run here. {why} Recorded evidence is shown."
            return
        found, incident.layers, incident.events = made.data, made.layers, made.events
        incident.origin_note = (
            "Findings made for this report, by a replay on this machine."
            if _replayed(found)
            else "Findings from the record alone: the step's code was not run for this report."
        )
    incident.findings_text = without_folder(jsonio.dumps(found), opened)
    incident.findings = jsonio.loads(incident.findings_text)
    incident.summary = [str(line) for line in incident.findings.get("summary") or []]


def without_folder(text: str, opened: Any) -> str:
    """The text without the folder a bundle lies in: a shared page tells nothing of a machine.

    Findings may have been made where the bundle lay before, so any folder before its name goes.
    """
    folder = opened.path.parent
    for written in {str(folder), str(folder.resolve())} - {"/", "."}:
        text = text.replace(f"{written}/", "")
    return re.sub(rf"[^\s'\"`]*[/\\](?={re.escape(opened.path.name)})", "", text)


Saved = tuple[dict[str, Any], TableLike | None, TableLike | None, str]


def saved_findings(opened: Any) -> Saved | None:
    """Findings that were saved beside the bundle or packed with it, and are about its very bytes.

    Returns:
        The findings, the tables of ranges and of ops (or None), and where they were.
    """
    folder = opened.findings_dir
    found = _about(opened, _optional(lambda: _read(folder / "findings.json"), None))
    if found is not None:
        layers, events = (_table(folder / "trace", name) for name in ("layers", "events"))
        return found, layers, events, "beside the bundle"
    packed = _optional(lambda: jsonio.loads(opened.read_packed_findings(_PACKED)), None)
    found = _about(opened, packed)
    if found is None:
        return None
    layers, events = (_table(opened, f"findings/trace/{name}") for name in ("layers", "events"))
    return found, layers, events, "with the packed bundle"


_PACKED = "findings/findings.json"


def _read(path: Path) -> Any:
    try:
        return jsonio.loads(path.read_bytes())
    except OSError as error:
        raise BundleError(
            f"The findings {str(path)!r} cannot be read ({error}), so they are on no page. "
            "Run `workbench diagnose` again to write them anew."
        ) from error


def _about(opened: Any, data: Any) -> dict[str, Any] | None:
    """The findings, if they are findings of this bundle."""
    if not isinstance(data, dict) or data.get("schema") != "workbench.findings/1":
        return None
    named = data.get("bundle")
    same = isinstance(named, dict) and named.get("digest") == opened.digest
    return data if same else None


def _table(source: Any, name: str) -> TableLike | None:
    from workbench.evidence import read_table

    table: TableLike | None = _optional(lambda: read_table(source, name), None)
    return table


def _replayed(data: Mapping[str, Any]) -> bool:
    return bool((data.get("reproduction") or {}).get("verdict"))
