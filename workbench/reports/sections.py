"""The sections of an incident report: each is one call of a template's cell."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

from workbench import __version__
from workbench.charts import CHARTS
from workbench.charts.arrays import tensor_kinds
from workbench.charts.loss_rows import with_loss
from workbench.charts.rows import Rows
from workbench.charts.words import number
from workbench.diagnose.answers import NEEDS_REPLAY, born
from workbench.evidence.departures import departures
from workbench.evidence.verdicts import result_sentence
from workbench.evidence.wording import before_the_step, command_line, counted
from workbench.reports import blocks, wording
from workbench.reports.blocks import Block, Section
from workbench.reports.incident import Incident, load_incident
from workbench.reports.notes import notes, summary
from workbench.reports.stages import stage_rows

__all__ = [
    "Incident",
    "check",
    "counterfactuals",
    "environment",
    "first_screen",
    "load_incident",
    "notes",
    "origin",
    "ranges",
    "stages",
    "timeline",
]

_NO_RANGES = (
    "Ranges come from a replay of the step, and no traced replay stands behind this report. "
    "Make it again with the step's code: workbench report BUNDLE --step package.module:Name"
)

_NOTHING_WRONG = "No origin: no non-finite value was followed to anything that the step uses."


def first_screen(incident: Incident) -> Section:
    """The answer in sentences, how it happened, and the chart that shows it."""
    text, tone = wording.headline(incident)
    shown: list[Block] = [
        blocks.title(wording.title(incident), wording.when(incident), text, tone),
        blocks.facts(
            [
                ("Where", wording.answer(incident, "where"), "stages"),
                ("Why", wording.line(incident, "Why"), "origin"),
                ("Contaminated", wording.answer(incident, "contaminated"), "origin"),
                ("Ranks", wording.answer(incident, "ranks"), "environment"),
                ("Reproduced", wording.answer(incident, "reproduced"), "how-to-check-this-report"),
                ("Prevent", wording.answer(incident, "prevent"), "counterfactuals"),
                ("Resume from", wording.resume(incident), ""),
                ("Not shown", wording.not_shown(incident), ""),
                *([("Damaged", " ".join(incident.damaged), "")] if incident.damaged else []),
                *([("Notes", noted, "notes")] if (noted := summary(incident)) else []),
            ]
        ),
    ]
    if incident.answers:
        rows = tuple((a.question, a.evidence, a.command) for a in incident.answers)
        caption = "What the answers rest on, and the command that computes each again"
        headers = ("Question", "Evidence", "Command")
        shown.append(blocks.table(Rows(caption, headers, rows), folded=True))
    links = wording.chain(incident)
    if links:
        shown.append(blocks.steps(links, "How it happened"))
    if incident.layers is not None and "activations" in tensor_kinds(incident.layers):
        shown.append(_ranges_chart(incident, "activations", height=320))
    elif incident.ledger:
        shown.append(_timeline_chart(incident, "first-timeline", height=360))
    shown.append(blocks.contents())
    return Section("summary", shown, incident.findings_text)


def _ranges_chart(incident: Incident, tensor: str, height: int = 340) -> Block:
    chart = CHARTS["ranges"]
    layers = incident.layers
    if layers is not None and tensor == "activations":
        layers = with_loss(layers, incident.events)
    return blocks.chart(
        f"ranges-{tensor}",
        chart.figure(layers, tensor, height=height),
        chart.table(layers, tensor),
        chart.drawing(layers, tensor),
    )


def _timeline_chart(incident: Incident, chart_id: str, height: int = 440) -> Block:
    chart = CHARTS["timeline"]
    data = {"ledger": incident.ledger, "incident": incident.step}
    if any(record.get("rank") == incident.rank for record in incident.ledger):
        data["rank"] = incident.rank
    return blocks.chart(
        chart_id, chart.figure(**data, height=height), chart.table(**data), chart.drawing(**data)
    )


def stages(incident: Incident) -> Section:
    """The ten stages: what each showed and what it can establish."""
    return Section("stages", [blocks.table(stage_rows(incident))])


def origin(incident: Incident) -> Section:
    """Where the value was born, why, what to try, and what this does not show."""
    data = incident.findings
    if data is None:
        return Section("origin", [blocks.paragraph(f"Not known. {incident.origin_note}")])
    shown: list[Block] = [blocks.paragraph(incident.origin_note, "muted")]
    found = wording.origins(incident)
    if not found:
        missing = NEEDS_REPLAY if wording.needs_replay(incident) else _NOTHING_WRONG
        shown.append(blocks.paragraph(missing))
        if not departures(data):  # else each is said below
            shown.append(blocks.paragraph(f"Why: {wording.line(incident, 'Why')}"))
    for item in found:
        shown += _one_origin(incident, item, numbered=len(found) > 1)
    links = wording.chain(incident)
    if links:
        shown += [blocks.heading("Chain"), blocks.steps(links, "")]
    if left := departures(data):
        shown += [blocks.heading("What left its usual range"), blocks.bullets(left)]
    absorbed = [wording.item_name(item) for item in data.get("absorbed") or []]
    if absorbed:
        shown += [blocks.heading("Absorbed"), blocks.bullets(absorbed)]
    limits = [str(limit) for limit in data.get("limits") or []]
    if limits:
        shown += [blocks.heading("What this does not show"), blocks.bullets(limits)]
    return Section("origin", shown)


def _one_origin(incident: Incident, item: Mapping[str, Any], *, numbered: bool) -> list[Block]:
    place = born(item)
    tensor = item.get("tensor") or {}
    positions = tensor.get("positions") or {}
    rows = [
        ("Was", before_the_step(item) or ""),
        ("Born at", "" if before_the_step(item) else place),
        ("Kind", wording.words(item.get("kind"))),
        ("Cause", wording.words(item.get("cause") or "not classified")),
        ("Why", str(item.get("explanation") or "")),
        ("Range", _range_words(item)),
        ("Tensor", _tensor_words(tensor, positions)),
        ("Samples", _sample_words(incident, positions)),
        ("Backward of", str(item.get("forward_op") or "")),
        ("Autograd node", str(item.get("autograd_node") or "")),
        ("Fix to try", str(item.get("fix") or "")),
    ]
    kept = tuple(row for row in rows if row[1])
    heading = [blocks.heading(place)] if numbered else []
    return [*heading, blocks.table(Rows("", ("Fact", "Value"), kept))]


def _sample_words(incident: Incident, positions: Mapping[str, Any]) -> str:
    """Which samples hold the bad values: training data's names, shown only when asked for."""
    places = list(positions.get("samples") or [])
    if not incident.show_samples or not places:
        return ""
    ids = incident.record.get("sample_ids")
    names = [
        str(ids[place])
        for place in places
        if isinstance(ids, list) and isinstance(place, int) and 0 <= place < len(ids)
    ]
    return ", ".join(names or [f"position {number(place)}" for place in places])


def _range_words(item: Mapping[str, Any]) -> str:
    dtype = str(item.get("dtype") or "its dtype")
    return {
        "domain": "Domain: no finite value exists for these inputs, in any dtype.",
        "overflow": f"Overflow: the float64 result is finite, {dtype} cannot hold it.",
        "underflow": f"Underflow: the float64 result is finite, {dtype} rounded to zero.",
    }.get(str(item.get("range")), "")


def _tensor_words(tensor: Mapping[str, Any], positions: Mapping[str, Any]) -> str:
    name = str(tensor.get("name") or "")
    if not positions:
        return name
    count = counted(int(positions.get("count") or 0), "element")
    first = positions.get("first")
    place = f", first at {first}" if first is not None else ""
    return f"{name}: {count}{place}".removeprefix(": ")


def counterfactuals(incident: Incident) -> Section:
    """What was changed, what came of it, and what that does and does not establish."""
    tried = list((incident.findings or {}).get("counterfactuals") or [])
    if not tried:
        text = NEEDS_REPLAY if wording.needs_replay(incident) else "None was tried."
        return Section("counterfactuals", [blocks.paragraph(text)])
    headers = ("Change", "Result", "Placebo", "Establishes", "Does not establish")
    rows = tuple(
        (
            str(item.get("intervention") or ""),
            result_sentence(str(item.get("result")), str(item.get("moved_to") or "")),
            result_sentence(str(item["placebo"])) if item.get("placebo") else "Not run.",
            str(item.get("establishes") or ""),
            str(item.get("does_not_establish") or ""),
        )
        for item in tried
    )
    caption = "Each change is diagnostic: a finite result narrows the cause, it repairs nothing."
    return Section("counterfactuals", [blocks.table(Rows(caption, headers, rows))])


def ranges(incident: Incident) -> Section:
    """Ranges of what the first screen does not draw: gradients, parameters, updates."""
    if incident.layers is None:
        return Section("ranges", [blocks.paragraph(_NO_RANGES)])
    kinds = tensor_kinds(incident.layers)
    shown: list[Block] = []
    if "activations" in kinds:
        shown.append(blocks.paragraph("Activations are drawn on the first screen.", "muted"))
    for kind in (kind for kind in kinds if kind != "activations"):
        shown += [blocks.heading(kind.capitalize()), _ranges_chart(incident, kind)]
    return Section("ranges", shown or [blocks.paragraph(_NO_RANGES)])


def timeline(incident: Incident) -> Section:
    """Loss, gradient norm, loss scale and learning rate before the incident."""
    if not incident.ledger:
        text = "The bundle holds no ledger, so what came before the step is not known."
        return Section("timeline", [blocks.paragraph(text)])
    return Section("timeline", [_timeline_chart(incident, "timeline")])


def environment(incident: Incident) -> Section:
    """What the step was recorded on, its conditions, and what differs here."""
    shown: list[Block] = []
    if incident.differences:
        rows = tuple(
            (str(d.get("field")), number(d.get("recorded")), number(d.get("here")))
            for d in incident.differences
        )
        caption = "What differs between the recorded run and the machine that made this report."
        shown.append(blocks.table(Rows(caption, ("Field", "Recorded", "Here"), rows)))
    elif incident.environment:
        shown.append(blocks.paragraph("Recorded and made under equal environments."))
    shown.append(
        _pairs(
            "Original conditions: every setting a replay can change.",
            incident.conditions,
            "Condition",
        )
    )
    shown.append(_pairs("What the step was recorded on.", incident.environment, "Field"))
    shown.append(_pairs("How far the bundle allows a replay.", incident.completeness, "Goal"))
    return Section("environment", [block for block in shown if block.get("rows") != []])


def _pairs(caption: str, values: Mapping[str, Any], name: str) -> Block:
    rows = tuple(sorted((key, text) for key, text in _flat(values)))
    return blocks.table(Rows(caption, (name, "Value"), rows), folded=True)


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            found += _flat(value, f"{prefix}{key}.")
        elif isinstance(value, (list, tuple)):
            found.append((f"{prefix}{key}", ", ".join(number(item) for item in value) or "none"))
        else:
            found.append((f"{prefix}{key}", number(value)))
    return found


def check(incident: Incident, replayed: str = "") -> Section:
    """How a reader can check every claim: digests, command, versions, device, author.

    Args:
        incident: The incident.
        replayed: What this report replayed itself, where it rests on that and not on findings.
    """
    import torch

    versions = (
        f"nonfinite-workbench {__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()}"
    )
    devices = [str(device.get("name")) for device in incident.here.get("devices") or []]
    rows = [
        ("Bundle", incident.name),
        ("Bundle digest", incident.digest),
        *([("Files", incident.files)] if incident.files else []),
        *(
            [("Replayed", replayed)]
            if replayed
            else [
                ("Reproduced", wording.answer(incident, "reproduced")),
                ("Findings", incident.origin_note),
            ]
        ),
        ("Recorded device", str(incident.conditions.get("device", ""))),
        ("Device of this report", ", ".join(devices) or "cpu"),
        (
            "Versions",
            versions,
        ),
        ("Samples", "shown as asked for" if incident.show_samples else "sample values not shown"),
        ("Author", incident.about.get("author") or "not named"),
    ]
    named = incident.manifest.get("step_reference")
    own = incident.manifest.get("step_kind") == "integration" or not named
    code = [] if own else ["--step", named]  # without it what a replay shows cannot be checked
    again = command_line("recheck", "report.html", "--bundle", incident.name, *code)
    return Section(
        "check",
        [
            blocks.table(Rows("", ("Fact", "Value"), tuple(rows))),
            blocks.code(again, "Runs the claims of this report again"),
            blocks.code(command_line("verify", incident.name), "Checks every file of the bundle"),
        ],
    )
