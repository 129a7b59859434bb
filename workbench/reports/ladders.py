"""Sections of the template ``backend-ladder``: the step under eager code and compile backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.charts.rows import Rows
from workbench.charts.words import number
from workbench.evidence.wording import counted, joined
from workbench.numerics import jsonio
from workbench.reports import blocks
from workbench.reports.blocks import Block, Section
from workbench.reports.incident import Incident
from workbench.reports.opening import opening, require_code
from workbench.reports.telling import tell

_HOW = {
    "shape": "another shape or dtype",
    "mask": "other elements are non-finite",
    "values": "other finite values",
    "missing": "missing in one of the two",
}


@dataclass
class LadderReport:
    """A ladder as a report sees it.

    Attributes:
        incident: The incident.
        data: ``workbench.ladder/1``.
    """

    incident: Incident
    data: dict[str, Any]

    @property
    def rungs(self) -> list[dict[str, Any]]:
        """The runs; the uncompiled one is the first."""
        return list(self.data["reproductions"])


def run(
    incident: Incident,
    bundle: str,
    step: str = "",
    trust: str = "",
    backends: str = "eager aot_eager aot_eager_decomp_partition inductor",
    search_compiler: bool = False,
    timeout_s: float = 1800.0,
) -> LadderReport:
    """Run a step uncompiled and under compile backends.

    Args:
        incident: The incident.
        bundle: Path of its bundle.
        step: Code of the step.
        trust: ``import``, ``source`` or empty.
        backends: Backends in the order to run, separated by blanks or commas.
        search_compiler: Whether torch's compiler bisector is asked when ``inductor`` is the first
            to differ.
        timeout_s: Seconds the compiler bisector may take.

    Raises:
        UsageError: No such backend.
        CannotRunError: No code was named, or the step cannot be replayed.
    """
    from workbench.diagnose.ladder import ladder

    require_code(incident, "backend-ladder", step, trust)
    found = ladder(
        bundle,
        step or None,
        trust or None,
        backends=backends.replace(",", " ").split(),
        search_compiler=search_compiler,
        timeout_s=timeout_s,
        progress=tell,
    )
    return LadderReport(incident, jsonio.loads(jsonio.dumps(found.to_data())))


def first_screen(report: LadderReport) -> Section:
    """Which runs fail, and which backend is the first to differ from uncompiled code."""
    data = report.data
    ran = [rung for rung in report.rungs if not _did_not_run(rung)]
    fails = [rung for rung in ran if rung["fails"]]
    said = f"{_outcome(len(fails), len(ran))} {data['conclusion']}"
    tone = "bad" if fails else "alert" if data["first_different"] else ""
    facts = [
        ("Fails under", _listed(fails) or "None of the runs.", "runs"),
        ("Finite under", _listed([r for r in ran if not r["fails"]]), "runs"),
        ("Did not run", _listed([r for r in report.rungs if _did_not_run(r)]), "runs"),
        ("Recorded under", _listed([{"backend": data["recorded_backend"]}]), ""),
        ("First module", _module(data["first_module"]), "where-they-part"),
        ("Same start", _aligned(data), "where-they-part"),
        (
            "Not shown",
            "That the compiler is at fault where results differ: both may round otherwise.",
            "",
        ),
    ]
    kept = [fact for fact in facts if fact[1]]
    return opening(report.incident, "Backend ladder", (said, tone), kept, data)


def _outcome(fails: int, ran: int) -> str:
    if not fails:
        return f"The step is finite in {number(ran)} of {counted(ran, 'run')}."
    return f"The step fails in {number(fails)} of {counted(ran, 'run')}."


def _listed(rungs: Sequence[Mapping[str, Any]]) -> str:
    text = joined([_name(rung) for rung in rungs], 6)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _name(rung: Mapping[str, Any]) -> str:
    return "uncompiled code" if rung["backend"] == "off" else str(rung["backend"])


def _did_not_run(rung: Mapping[str, Any]) -> bool:
    return bool(rung["error"]) and rung["first_bad"] is None


def _module(found: Mapping[str, Any] | None) -> str:
    if not found:
        return ""
    if found["module"] is None:
        return "No block parts when it is compiled alone."
    return f"{found['module'] or 'the model'}, compiled alone: {_how(found['how'])}."


def _how(word: Any) -> str:
    return _HOW.get(str(word), str(word))


def _aligned(data: Mapping[str, Any]) -> str:
    if data["aligned"]:
        return "All runs start from one state, batch and random numbers."
    return f"No: {joined(sorted(data['unaligned']), 4)} start from another state."


def runs(report: LadderReport) -> Section:
    """One row per run."""
    headers = ("Run", "Result", "Parts from uncompiled code at", "How")
    rows = []
    for rung in report.rungs:
        part = rung["first_parting"]
        bad = rung["first_bad"]
        if _did_not_run(rung):
            found = f"did not run: {rung['error']}"
        else:
            found = f"✕ bad at {bad['stage']} ({bad['tensor']})" if bad else "✓ finite"
        mark = "●" if rung["original"] else "◇"
        place = str(part["name"]) if part else "–"
        rows.append((f"{mark} {_name(rung)}", found, place, _how(part["how"]) if part else "–"))
    caption = "● the backend of the record, ◇ diagnostic ones. Masks are compared before values."
    shown: list[Block] = [blocks.table(Rows(caption, headers, tuple(rows)))]
    if report.data["notes"]:
        shown.append(blocks.bullets([str(note) for note in report.data["notes"]]))
    return Section("runs", shown)


def partings(report: LadderReport) -> Section:
    """Where runs part, with the numbers; what they did not start with alike."""
    data = report.data
    shown: list[Block] = []
    for rung in report.rungs:
        part = rung["first_parting"]
        if not part:
            continue
        shown.append(blocks.heading(f"{_name(rung)} and uncompiled code"))
        compared = part["comparison"] or {}
        rows = tuple((str(k).replace("_", " "), _value(v)) for k, v in sorted(compared.items()))
        caption = f"First place: {part['name']}, {_how(part['how'])}."
        shown.append(blocks.table(Rows(caption, ("Comparison", "Value"), rows)))
        others = [f"{p['name']}: {_how(p['how'])}" for p in rung["partings"][1:20]]
        if others:
            shown.append(blocks.paragraph("After it:"))
            shown.append(blocks.bullets(others))
    shown += _beginnings(data)
    if not shown:
        shown.append(blocks.paragraph("No run parts from uncompiled code."))
    return Section("partings", shown)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_value(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(_value(item) for item in value)
    return number(value)


def _beginnings(data: Mapping[str, Any]) -> list[Block]:
    """What made the runs unlike before they began."""
    said = [
        f"{backend} does not start from the same state: {joined([i['name'] for i in unlike], 5)}."
        for backend, unlike in data["unaligned"].items()
    ]
    said += [
        f"The cache {c['name']} ({c['kind']}) is {c['dtype']}, parameters are {c['parameters']}: "
        "it did not follow the precision."
        for c in data["stale_caches"]
    ]
    said += [
        f"{item['name']} has shape {item['here']}, recorded {item['recorded']}: a changed trigger."
        for item in data["changed_trigger"]
    ]
    found = data["compiler_bisector"]
    if found:
        keys = ("backend", "subsystem", "debug_info", "why")
        known = " · ".join(str(found[key]) for key in keys if found.get(key))
        said.append(f"torch's compiler bisector: {found['status']}. {known}".strip())
    return [blocks.heading("Before they began"), blocks.bullets(said)] if said else []
