"""Sections of the template ``trajectory``: the kept steps before an incident, replayed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.charts import CHARTS
from workbench.charts.rows import Rows
from workbench.charts.words import MISSING, number
from workbench.evidence.wording import counted
from workbench.numerics import jsonio
from workbench.reports import blocks
from workbench.reports.blocks import Block, Section
from workbench.reports.incident import Incident
from workbench.reports.opening import opening, require_code
from workbench.reports.telling import tell

_EQUAL = {True: "yes", False: "no", None: MISSING}
_RANGES = {
    "absmax": "largest magnitude",
    "rms": "root mean square",
    "gradient_absmax": "largest gradient",
    "update_ratio": "update, relative to its size",
}


@dataclass
class TrajectoryReport:
    """A replayed way to an incident.

    Attributes:
        incident: The incident.
        data: ``workbench.trajectory/1``.
        ranges: One row per step and parameter.
        parameters: How many parameters the table of ranges names at most.
    """

    incident: Incident
    data: dict[str, Any]
    ranges: list[dict[str, Any]]
    parameters: int = 20

    @property
    def steps(self) -> list[dict[str, Any]]:
        """One row per step."""
        return list(self.data["steps"])


def run(
    incident: Incident, bundle: str, step: str = "", trust: str = "", parameters: int = 20
) -> TrajectoryReport:
    """Replay from the oldest recovery point through every kept step to the incident.

    Args:
        incident: The incident.
        bundle: Path of its bundle.
        step: Code of the step.
        trust: ``import``, ``source`` or empty.
        parameters: How many parameters the table of ranges names at most.

    Raises:
        CannotRunError: No code was named, or the bundle keeps no earlier steps.
        BundleError: The trajectory is damaged.
    """
    from workbench.evidence import open_bundle
    from workbench.replay.source import Source
    from workbench.replay.trajectory import replay_trajectory

    require_code(incident, "trajectory", step, trust)
    opened = open_bundle(bundle)
    source = Source.from_bundle(opened, step or None, trust or None)
    found = replay_trajectory(opened, source, tell)
    # through the strict codec, so that NaN is one thing in memory and on the page
    rows = [dict(row) for row in found.ranges.rows()]
    return TrajectoryReport(incident, jsonio.loads(jsonio.dumps(found.to_data())), rows, parameters)


def first_screen(report: TrajectoryReport) -> Section:
    """Whether the way to the incident replays, and where it first left the usual."""
    data = report.data
    departure, outlier = data["departure"], data["outlier"]
    sentences = [str(sentence) for sentence in data["sentences"]]
    tone = "alert" if departure is not None or outlier is not None else ""
    bad = next((row for row in report.steps if row["bad"]), None)
    unusual = str(outlier["sentence"]) if outlier else " ".join(sentences[1:2])
    facts = [
        ("Steps", f"{number(data['start'])} to {number(data['last'])}.", "steps"),
        ("As recorded", _departure(departure), "steps"),
        ("First unusual", unusual, "ranges"),
        (
            "First bad",
            f"Step {number(bad['step'])}, {bad['bad']}." if bad else "No step is bad here.",
            "steps",
        ),
        ("Not shown", "That an unusual value is wrong, or that it made the failure.", ""),
    ]
    more = [_chart(report)] if len(report.steps) > 1 else []
    return opening(report.incident, "Trajectory", (sentences[0], tone), facts, data, more)


def _departure(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "Every kept step starts as the step before it left off, and every loss is equal."
    what = str(found["what"]).replace("_", " ")
    return f"Departs at step {number(found['step'])}, in {what}."


def _chart(report: TrajectoryReport) -> Block:
    """The replayed steps in the rows of a timeline."""
    ledger = [
        {
            "step": row["step"],
            "loss": row["loss"],
            "grad_norm": row["gradient_norm"],
            "loss_scale": row["loss_scale"],
            "learning_rates": [row["learning_rate"]],
        }
        for row in report.steps
    ]
    chart = CHARTS["timeline"]
    data: dict[str, Any] = {"ledger": ledger, "incident": report.data["last"]}
    block = blocks.chart(
        "replayed-timeline", chart.figure(**data), chart.table(**data), chart.drawing(**data)
    )
    return {**block, "caption": f"Replayed here. {block['caption']}"}


def steps(report: TrajectoryReport) -> Section:
    """One row per step: what it computed, and whether that is what was recorded."""
    headers = (
        "Step",
        "Loss",
        "Loss as recorded",
        "Gradient norm",
        "max |parameter|",
        "Largest update",
        "Bad",
    )
    rows = tuple(
        (
            f"{number(row['step'])}{' · recovery point' if row['recovery_point'] else ''}",
            number(row["loss"]),
            _EQUAL[row["loss_equal"]],
            number(row["gradient_norm"]),
            number(row["absmax"]),
            number(row["update_ratio"]),
            str(row["bad"] or ""),
        )
        for row in report.steps
    )
    caption = (
        "Replayed steps. An update is the root mean square of the change over that of the "
        "parameter, the largest over all parameters."
    )
    shown = [blocks.table(Rows(caption, headers, rows, numeric=(1, 3, 4, 5)))]
    said = [str(sentence) for sentence in report.data["sentences"]]
    return Section("steps", [blocks.bullets(said), *shown])


def ranges(report: TrajectoryReport) -> Section:
    """Parameters whose ranges changed most on the way."""
    grown = sorted(_growth(report).items(), key=lambda item: -abs(item[1][3]))
    headers = ("Parameter", "What", "First step", "Last step", "Factor")
    rows = tuple(
        (name, what, number(first), number(last), f"{number(2.0**factor)}×")
        for name, (what, first, last, factor) in grown[: report.parameters]
    )
    if not rows:
        text = "Fewer than two steps hold parameters, so nothing can be compared."
        return Section("ranges", [blocks.paragraph(text)])
    caption = f"What changed most, for {number(len(rows))} of {counted(len(grown), 'parameter')}."
    return Section("ranges", [blocks.table(Rows(caption, headers, rows, numeric=(2, 3, 4)))])


def _growth(report: TrajectoryReport) -> dict[str, tuple[str, float, float, float]]:
    """Per parameter the series that changed most: its name, first, last and log2 of the factor."""
    import math

    series: dict[tuple[str, str], list[float]] = {}
    for row in report.ranges:
        for key in _RANGES:
            value = row[key]
            if isinstance(value, float) and math.isfinite(value) and value > 0:
                series.setdefault((str(row["parameter"]), key), []).append(value)
    found: dict[str, tuple[str, float, float, float]] = {}
    for (name, key), values in series.items():
        factor = math.log2(values[-1] / values[0]) if len(values) > 1 else 0.0
        if name not in found or abs(factor) > abs(found[name][3]):
            found[name] = (_RANGES[key], values[0], values[-1], factor)
    return found
