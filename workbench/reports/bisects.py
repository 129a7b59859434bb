"""Sections of the template ``layer-bisect``: which block, which part of it, which op."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.charts.rows import Rows
from workbench.charts.words import number
from workbench.diagnose.answers import born
from workbench.errors import CannotRunError
from workbench.evidence.wording import before_the_step, counted, joined
from workbench.reports import blocks
from workbench.reports.blocks import Block, Section
from workbench.reports.incident import Incident
from workbench.reports.opening import opening, require_code
from workbench.reports.telling import tell

_NEEDS = {"precision": "Needs float32", "remove": "Needs removal"}
_WHAT = {"precision": "run in float32", "remove": "replaced by identity"}


@dataclass
class BisectReport:
    """A bisect as a report sees it.

    Attributes:
        incident: The incident.
        where: ``workbench.bisect/1`` of the search for the birth.
        changes: ``workbench.bisect/1`` of the search for needed blocks, by what is done to them.
        skipped: Why a search for needed blocks was not made, by what would be done.
    """

    incident: Incident
    where: dict[str, Any]
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


def run(
    incident: Incident,
    bundle: str,
    step: str = "",
    trust: str = "",
    halve: bool = False,
    precision: bool = True,
    remove: bool = False,
) -> BisectReport:
    """Find the block and the op where the bad value was born, and the blocks that must change.

    Args:
        incident: The incident.
        bundle: Path of its bundle.
        step: Code of the step.
        trust: ``import``, ``source`` or empty.
        halve: Halve over prefixes of the forward instead of scanning it once.
        precision: Whether the blocks that must leave low precision are looked for.
        remove: Whether the blocks that must be removed are looked for.

    Raises:
        CannotRunError: Neither ``step`` nor ``trust`` was given, or the step cannot be replayed.
    """
    from workbench.diagnose.bisect import bisect
    from workbench.diagnose.bisect_change import Which, bisect_change

    require_code(incident, "layer-bisect", step, trust)
    code = (step or None, trust or None)
    found = bisect(bundle, *code, halve=halve, progress=tell)
    report = BisectReport(incident, found.to_data())
    asked: dict[Which, bool] = {"precision": precision, "remove": remove}
    for which, wanted in asked.items():
        if not wanted:
            report.skipped[which] = "not asked for"
            continue
        try:
            report.changes[which] = bisect_change(bundle, which, *code, progress=tell).to_data()
        except CannotRunError as error:
            report.skipped[which] = str(error)
    return report


def first_screen(report: BisectReport) -> Section:
    """Where the bad value was born, and how few runs it took to find it."""
    data = report.where
    origin = data["origin"]
    runs = f"{counted(int(data['probe_count']), 'run')} of the step"
    if data["ops"]:
        runs += f"; statistics of {number(data['ops_looked_at'])} of {counted(data['ops'], 'op')}"
    headline = ("Nothing non-finite reaches a sink of this step here.", "")
    if origin is not None:
        held = before_the_step(origin)
        headline = (f"It was {held}." if held else f"Born at {born(origin)}.", "bad")
    facts = [
        ("Block", _block(data), "search"),
        ("Part", f"{data['part']}." if data["part"] else "", "search"),
        ("Found with", f"{runs}.", "search"),
        *(
            (_NEEDS[which], _needed(found), "blocks-that-must-change")
            for which, found in report.changes.items()
        ),
        (
            "Not shown",
            "That a block is the cause: a block may only carry on what made it fail.",
            "",
        ),
    ]
    whole = {"schema": "workbench.bisect-report/1", "where": data, "changes": report.changes}
    return opening(report.incident, "Bisect", headline, [f for f in facts if f[1]], whole)


def _block(data: Mapping[str, Any]) -> str:
    if data["block"]:
        return f"{data['block']}, in {str(data['direction']).replace('step', 'the update')}."
    if data["origin"] is None:
        return ""
    return "Outside of the model's blocks."


def _needed(found: Mapping[str, Any]) -> str:
    if not found["needed"]:
        return str((found["notes"] or ["No block was found."])[0])
    again = {
        True: "The original, run again, still fails.",
        False: "The original, run again, is finite too: this says nothing.",
    }.get(found["original_fails"], "")
    return f"{joined(found['needed'], at_most=8)}. {again}".strip()


def search(report: BisectReport) -> Section:
    """Every run of the search, in order, and what limits the answer."""
    data = report.where
    shown: list[Block] = [_probes("Runs of the step, in order.", data)]
    if data["used_full_trace"]:
        shown.append(blocks.paragraph("Hooks could not settle it: a full trace decided."))
    origin = data["origin"]
    if origin is not None:
        tensor = origin.get("tensor") or {}
        positions = tensor.get("positions") or {}
        rows = (
            ("Was", before_the_step(origin) or ""),
            ("Born at", "" if before_the_step(origin) else born(origin)),
            ("Tensor", str(tensor.get("name") or "")),
            ("Elements", number(positions.get("count"))),
            ("First of them", str(positions.get("first") or "")),
            ("Autograd node", str(origin.get("autograd_node") or "")),
            ("Backward of", str(origin.get("forward_op") or "")),
        )
        kept = tuple(row for row in rows if row[1])
        shown.append(blocks.table(Rows("The birth.", ("Fact", "Value"), kept)))
    if data["notes"]:
        shown.append(blocks.bullets([str(note) for note in data["notes"]]))
    return Section("search", shown)


def _probes(caption: str, data: Mapping[str, Any]) -> Block:
    rows = tuple(
        (number(index), str(probe["what"]), str(probe["result"]))
        for index, probe in enumerate(data["probes"], 1)
    )
    return blocks.table(Rows(caption, ("Run", "What was run", "What came of it"), rows))


def changes(report: BisectReport) -> Section:
    """Blocks whose change together makes the step finite."""
    shown: list[Block] = []
    for which, found in report.changes.items():
        shown.append(blocks.heading(f"Blocks {_WHAT[which]}"))
        shown.append(blocks.paragraph(f"Needed: {_needed(found)}"))
        if found["monotone"] is not None:
            text = (
                "As far as it was run, changing more blocks never brought the failure back."
                if found["monotone"]
                else "Changing more blocks brought the failure back: the answer is one of several."
            )
            shown.append(blocks.paragraph(text, "muted"))
        shown.append(_probes("Runs of the step, in order.", found))
        unfit = tuple((str(path), str(why)) for path, why in found["unfit"].items())
        if unfit:
            rows = Rows("Blocks that cannot be changed so.", ("Block", "Why"), unfit)
            shown.append(blocks.table(rows, folded=True))
        shown.append(blocks.bullets([str(note) for note in found["notes"]]))
    for which, why in report.skipped.items():
        shown.append(blocks.paragraph(f"Blocks {_WHAT[which]}: {why}.".replace("..", "."), "muted"))
    return Section("changes", [block for block in shown if block.get("items") != []])
