"""Sections of the template ``sweep``: a grid of conditions, and the smallest fixing changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.charts.rows import Rows
from workbench.charts.words import MISSING, number
from workbench.errors import UsageError
from workbench.evidence.verdicts import result_sentence
from workbench.evidence.wording import counted, joined
from workbench.reports import blocks
from workbench.reports.blocks import Block, Section
from workbench.reports.incident import Incident
from workbench.reports.opening import opening, require_code
from workbench.reports.telling import tell

MOST_CELLS = 400
_MASKS = {
    "equal": "the same elements",
    "subset": "some of them",
    "superset": "these and others",
    "overlap": "some of them, and others",
    "disjoint": "others",
    "finite": "none",
    "unknown": MISSING,
}


@dataclass
class SweepReport:
    """A sweep as a report sees it.

    Attributes:
        incident: The incident.
        sweep: ``workbench.sweep/1``.
        minimal: ``workbench.minimal/1``, or None when it was not looked for.
        values: Values asked for, by condition.
        combined: Whether every combination was run.
        note: What was not done, and why; empty when all was.
    """

    incident: Incident
    sweep: dict[str, Any]
    minimal: dict[str, Any] | None
    values: dict[str, list[Any]]
    combined: bool
    note: str = ""

    @property
    def cells(self) -> list[dict[str, Any]]:
        """The cells; the original is the first."""
        return list(self.sweep["cells"])

    @property
    def fails_here(self) -> bool:
        """Whether the original conditions fail on this machine."""
        return self.cells[0]["tensor"] is not None


def run(
    incident: Incident,
    bundle: str,
    step: str = "",
    trust: str = "",
    conditions: str = "",
    combine: bool = False,
    minimal: bool = True,
    repeats: int = 1,
    jobs: int = 1,
    timeout_s: float = 600.0,
    resume: bool = True,
) -> SweepReport:
    """Replay a step under a grid of conditions, then look for the smallest changes that fix it.

    Args:
        incident: The incident.
        bundle: Path of its bundle.
        step: Code of the step.
        trust: ``import``, ``source`` or empty.
        conditions: ``key=value,value`` separated by blanks; empty for the usual ones.
        combine: Run every combination instead of one change at a time.
        minimal: Whether the smallest changes are looked for.
        repeats: Runs per cell.
        jobs: Cells at a time.
        timeout_s: Longest time of one cell, in seconds.
        resume: Take finished cells of an earlier sweep of the same bundle, code and conditions.

    Raises:
        UsageError: Unknown condition, or more than ``MOST_CELLS`` cells.
        CannotRunError: Neither ``step`` nor ``trust`` was given.
    """
    from workbench.diagnose.minimal import usual_changes
    from workbench.diagnose.sweep import cells_of, parse_values, run_sweep
    from workbench.evidence import open_bundle
    from workbench.replay.devices import nearest

    opened = open_bundle(bundle)
    values = parse_values(conditions.split())
    if not values:
        usual = usual_changes(nearest(opened.conditions))
        values = {key: [value] for key, value in usual.items()}
    wanted = list(cells_of(values, combine=combine))
    _check_count(len(wanted))
    require_code(incident, "sweep", step, trust)
    swept = run_sweep(
        opened,
        wanted,
        step=step or None,
        trust=trust or None,
        repeats=repeats,
        jobs=jobs,
        resume=resume,
        timeout_s=timeout_s,
        progress=lambda sentence: tell(f"Sweep, {sentence}"),
    )
    _save(swept, opened.findings_dir / "sweep")
    report = SweepReport(incident, swept.to_data(), None, values, combine)
    if not minimal:
        report.note = "The smallest changes were not looked for: minimal was set to False."
    elif not report.fails_here:
        report.note = "The original conditions do not fail here, so there is nothing to change."
    else:
        changes = {key: chosen[0] for key, chosen in values.items()}
        report.minimal = _minimal(opened, step, trust, changes, timeout_s)
    return report


def _check_count(count: int) -> None:
    if count > MOST_CELLS:
        raise UsageError(
            f"The conditions make {count:,} cells, and a report shows at most {MOST_CELLS}, so "
            "nothing was run. Give fewer values, or set combine to False; a larger sweep runs "
            "with: workbench sweep"
        )


def _save(swept: Any, directory: Path) -> None:
    try:
        swept.save(directory)
    except OSError as error:
        tell(f"The sweep was not saved beside the bundle: {type(error).__name__}")


def _minimal(
    opened: Any, step: str, trust: str, changes: Mapping[str, Any], timeout_s: float
) -> dict[str, Any]:
    from workbench.diagnose.minimal import minimal_changes
    from workbench.diagnose.probe import InWorker

    with InWorker(opened, step or None, trust or None, timeout_s) as probe:
        found = minimal_changes(
            probe, changes, say=lambda sentence: tell(f"Smallest changes, {sentence}")
        )
    return found.to_data()


def first_screen(report: SweepReport) -> Section:
    """What the sweep shows, in sentences."""
    cells = report.cells[1:]
    gone = [cell for cell in cells if cell["result"] in ("gone", "benign_skip")]
    broken = [cell for cell in cells if cell["result"] in ("error", "died", "stopped")]
    ended = f"it is gone with {number(len(gone))} of {counted(len(cells), 'changed condition')}"
    if not cells:
        ended = "every condition asked for is the recorded one, so nothing was changed"
    tone = "bad" if report.fails_here else ""
    lead = "The failure is reproduced here" if report.fails_here else "It did not fail here"
    facts = [
        ("Original", _original(report), "cells"),
        (
            "Gone with",
            f"{joined([c['name'] for c in gone], 6) or 'None of what was tried'}.",
            "cells",
        ),
        ("Smallest change", _smallest(report), "smallest-changes"),
        ("Not run", joined([f"{c['name']} ({c['error'] or c['result']})" for c in broken]), ""),
        ("Not shown", "That a condition is the cause, or that the model is repaired.", ""),
    ]
    data = {"schema": "workbench.sweep-report/1", "sweep": report.sweep, "minimal": report.minimal}
    kept = [fact for fact in facts if fact[1]]
    return opening(report.incident, "Sweep", (f"{lead}; {ended}.", tone), kept, data)


def _original(report: SweepReport) -> str:
    first = report.cells[0]
    caught = _caught(first)
    caught = f"{caught[:1].upper()}{caught[1:]}"
    verdict = {"bitwise": "as recorded, bit for bit", "same_mask": "as recorded"}
    same = verdict.get(str(first["verdict"]), "")
    return f"{caught}{', ' if same else ''}{same}."


def _smallest(report: SweepReport) -> str:
    if report.minimal is None:
        return report.note
    return str((report.minimal["sentences"] or ["None was found."])[0])


def _caught(cell: Mapping[str, Any]) -> str:
    if cell["tensor"] is None:
        return str(cell["error"] or "finite")
    stage = str(cell["stage"]).replace("_", " ")
    return f"{stage}: {cell['tensor']}" if cell["tensor"] != stage else f"caught at {stage}"


def cells(report: SweepReport) -> Section:
    """One row per cell, and a matrix where two conditions were combined."""
    headers = ("Conditions", "Result", "Caught at", "Loss", "Non-finite elements", "Runs agree")
    rows = tuple(
        (
            f"{'◇' if cell['diagnostic'] else '●'} {cell['name']}",
            _result(cell),
            _caught(cell),
            number(cell["loss"]),
            _MASKS.get(str(cell["mask"]), str(cell["mask"])),
            {True: "yes", False: "no"}.get(cell["same_each_time"], "one run"),
        )
        for cell in report.cells
    )
    caption = (
        "● the recorded conditions, ◇ diagnostic ones. Non-finite elements are compared with "
        "those of the original run."
    )
    shown = [blocks.table(Rows(caption, headers, rows, numeric=(3,)))]
    keys = list(report.values)
    if report.combined and len(keys) == 2:
        shown.insert(0, _matrix(report, keys[0], keys[1]))
    idle = {key for cell in report.cells for key in cell["without_effect"]}
    if idle:
        text = f"Cannot act here, whatever their value: {joined(sorted(idle), at_most=12)}."
        shown.append(blocks.paragraph(text, "muted"))
    return Section("cells", shown)


_RESULTS = {
    "appears": "It fails here, where the record did not.",
    "varies": "It differs from run to run.",
    "error": "It did not run.",
    "died": "Its process died.",
    "stopped": "It was stopped.",
}


def _result(cell: Mapping[str, Any]) -> str:
    word = str(cell["result"])
    if not cell["diagnostic"] and word == "unchanged":
        return "As recorded."
    return _RESULTS.get(word) or result_sentence(word)


def _matrix(report: SweepReport, down: str, across: str) -> Block:
    """Two combined conditions as a matrix; the recorded value stands for an unchanged one."""
    found = {
        tuple(
            _text(cell["changed"].get(key, report.incident.conditions[key])) for key in keys
        ): cell
        for cell in report.cells
        for keys in [(down, across)]
    }
    lines = _values_of(report, down)
    columns = _values_of(report, across)
    rows = tuple(
        (f"{down} {line}", *(_short(found.get((line, column))) for column in columns))
        for line in lines
    )
    headers = (down, *(f"{across} {column}" for column in columns))
    return blocks.table(Rows("What came of every combination.", headers, rows))


def _values_of(report: SweepReport, key: str) -> list[str]:
    asked = [_text(value) for value in report.values[key]]
    return list(dict.fromkeys([_text(report.incident.conditions[key]), *asked]))


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "on" if value else "off"
    return number(value)


def _short(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return MISSING
    mark = "✓" if cell["tensor"] is None and not cell["error"] else "✕"
    return f"{mark} {_result(cell)}"


def smallest(report: SweepReport) -> Section:
    """The smallest changes under which the step is finite, and what still fails with all else."""
    found = report.minimal
    if found is None:
        return Section("smallest", [blocks.paragraph(report.note)])
    shown: list[Block] = [blocks.bullets([str(sentence) for sentence in found["sentences"]])]
    rows = tuple(
        (name, _text(report.incident.conditions.get(name)), _text(value), _role(found, name))
        for name, value in found["values"].items()
    )
    headers = ("Condition", "Recorded", "Changed to", "In the smallest set")
    probes = number(int(found["probes"]))
    caption = f"Changes that were considered; {probes} different sets of them were run."
    shown.append(blocks.table(Rows(caption, headers, rows)))
    idle = tuple((str(k), str(v)) for k, v in found["without_effect"].items())
    if idle:
        shown.append(
            blocks.table(Rows("Changes that cannot act here.", ("Condition", "Why"), idle), True)
        )
    return Section("smallest", shown)


def _role(found: Mapping[str, Any], name: str) -> str:
    fixing = found["fixing"]
    if name in (fixing["set"] or ()):
        return "yes"
    others: Sequence[Sequence[str]] = fixing["alternatives"]
    return "in another one, as small" if any(name in one for one in others) else "no"


def shows(report: SweepReport) -> Section:
    """What each finite cell establishes, and what it does not."""
    found = report.sweep["findings"]
    if not found:
        return Section("shows", [blocks.paragraph("No changed condition gave a finite step.")])
    headers = ("Finding", "Establishes", "Does not establish")
    rows = tuple(
        (str(f["sentence"]), str(f["establishes"]), str(f["does_not_establish"])) for f in found
    )
    caption = "After each finite cell the original conditions were run again."
    return Section("shows", [blocks.table(Rows(caption, headers, rows))])
